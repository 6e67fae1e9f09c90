"""A copy of the clean Debian for each test, with the tarball in two versions and the single file."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.tarball import archives
from deploy.tarball.environment import CONTENTS
from dockershim import __version__
from tests.deb.conftest import Debian, clean_debian

OLD = "0.0.1"
#: Where a user unpacks it: the tests do not count what is there.
CARRIED = "/root"


def unpacked(debian: Debian, tarball: Path) -> str:
    """The folder in Debian into which the tarball is unpacked."""
    shutil.copy(tarball, debian.root / CARRIED[1:])
    debian.run("tar", "-C", CARRIED, "-xzf", f"{CARRIED}/{tarball.name}")
    with tarfile.open(tarball) as archive:
        return f"{CARRIED}/{archive.next().name.split('/')[0]}"  # type: ignore[union-attr]


def older(tarball: Path, target: Path) -> None:
    """Write the tarball as one of the version OLD, whose command says so."""
    with tarfile.open(tarball) as archive:
        files = {one.name: archive.extractfile(one).read() for one in archive.getmembers()}  # type: ignore[union-attr]
    (top,) = {name.split("/")[0] for name in files}
    table = json.loads(files[f"{top}/{CONTENTS}"])
    (path,) = (path for path in table["files"] if path.startswith("wheels/dockershim-"))
    name = f"{top}/{path}"
    files[name] = older_wheel(files[name])
    table["version"], table["files"][path] = OLD, hashlib.sha256(files[name]).hexdigest()
    files[f"{top}/{CONTENTS}"] = json.dumps(table).encode()
    archives.write_tar(target, {name.replace(top, "older", 1): content for name, content in files.items()}, 0)


def older_wheel(content: bytes) -> bytes:
    old = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as source, zipfile.ZipFile(old, "w") as target:
        for name in source.namelist():
            one = source.read(name)
            target.writestr(
                name, one.replace(__version__.encode(), OLD.encode()) if name == "dockershim/__init__.py" else one
            )
    return old.getvalue()


@pytest.fixture(scope="session")
def tarballs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The tarball, and the same with a version before every other."""
    tarball, old = Path(os.environ["TEST_TARBALL"]), tmp_path_factory.mktemp("old") / "old.tar.gz"
    older(tarball, old)
    return tarball, old


@pytest.fixture
def debian(tarballs: tuple[Path, Path]) -> Iterator[Debian]:
    """A clean Debian of the test's own. Its packages are the tarballs."""
    with clean_debian(*tarballs) as made:
        yield made
