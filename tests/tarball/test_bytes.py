"""What is built, as files: the same input gives the same bytes, and the scripts are clean."""

from __future__ import annotations

import os
import subprocess
import tarfile
from pathlib import Path

import pytest

from tests.node.cache import REPOSITORY

pytestmark = pytest.mark.timeout(300)

PYTHON = REPOSITORY / "build/release/bin/python"
TARBALL, SINGLE_FILE = Path(os.environ.get("TEST_TARBALL", "")), Path(os.environ.get("TEST_SINGLE_FILE", ""))


@pytest.mark.parametrize(("module", "built"), [("deploy.tarball", TARBALL), ("deploy.single_file", SINGLE_FILE)])
def test_the_same_input_gives_the_same_bytes(module: str, built: Path, tmp_path: Path) -> None:
    again = {"TZ": "Asia/Kolkata", "PYTHONHASHSEED": "1", "LC_ALL": "C"}
    command = ["sh", "-c", 'umask 077; exec "$@"', "sh", str(PYTHON), "-m", module, "--output", str(tmp_path)]
    subprocess.run(command, cwd=REPOSITORY, env=os.environ | again, check=True)
    second = {path.name: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    first = {path.name: path.read_bytes() for path in (built, *REPOSITORY.glob("dist/*.tgz")) if path.name in second}
    assert first.keys() == second.keys()
    assert [name for name in first if first[name] != second[name]] == []


def test_shellcheck_finds_nothing(tmp_path: Path) -> None:
    with tarfile.open(TARBALL) as archive:
        for name in ("install.sh", "openrc/dockershim"):
            (member,) = (one for one in archive.getmembers() if one.name.partition("/")[2] == name)
            content = archive.extractfile(member)
            assert content is not None
            (tmp_path / Path(name).name).write_bytes(content.read())
    start, _, _ = SINGLE_FILE.read_bytes().partition(b"PK\x03\x04")
    (tmp_path / "cri-dockerd").write_bytes(start)
    command = ["shellcheck", "--shell=sh", *map(str, tmp_path.iterdir())]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.stdout == ""
    assert done.returncode == 0
