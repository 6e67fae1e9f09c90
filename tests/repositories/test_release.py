"""What is published can be verified and installed, and what somebody has changed on the web server cannot."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from deploy.publish import check_key
from deploy.tree import BuildError
from dockershim import __version__
from tests.deb.conftest import Debian, clean_debian
from tests.rpm.conftest import STAND_IN, Root, build

pytestmark = pytest.mark.timeout(300)

RELEASE = Path(os.environ["TEST_RELEASE"])
SUITE = os.environ["TEST_SUITE"]
RPM = f"rpm/{os.environ['TEST_RPM_REPOSITORY']}/x86_64"
LIST = "/etc/apt/sources.list.d/dockershim.list"
ONLY = ("-o", f"Dir::Etc::sourcelist={LIST}", "-o", "Dir::Etc::sourceparts=-")


class Handler(SimpleHTTPRequestHandler):
    """A web server that logs nothing."""

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def release(tmp_path: Path) -> Path:
    """A copy of the release, which a test may change."""
    return Path(shutil.copytree(RELEASE, tmp_path / "release"))


@pytest.fixture
def url(release: Path) -> Iterator[str]:
    """Where a web server serves it."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(release))) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        serving.join()


@pytest.fixture
def debian(release: Path, url: str) -> Iterator[Debian]:
    """A clean Debian that has the repository, and no other."""
    with clean_debian(release, release) as made:
        key = made.root / "etc/apt/keyrings/dockershim.asc"
        key.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(release / "dockershim.asc", key)
        source = f"deb [signed-by=/etc/apt/keyrings/dockershim.asc] {url}/apt {SUITE} main\n"
        (made.root / LIST[1:]).write_text(source)
        yield made


@pytest.fixture
def root(debian: Debian, url: str, release: Path, tmp_path: Path) -> Root:
    """The same for dnf."""
    folder = tmp_path / "stand-in"
    folder.mkdir()
    made = Root(debian)
    spec = STAND_IN.format(python=os.environ["TEST_RPM_PYTHON"], glibc=os.environ["TEST_RPM_GLIBC"])
    made.rpm("--install", build(spec, folder))
    settings = debian.root / "etc/yum.repos.d/dockershim.repo"
    settings.parent.mkdir(parents=True)
    settings.write_text(
        f"[dockershim]\nname=dockershim\nbaseurl={url}/{RPM}\ngpgkey={url}/dockershim.asc\n"
        "gpgcheck=1\nrepo_gpgcheck=1\n"
    )
    return made


def change(file: Path) -> None:
    """Another byte in the middle."""
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def test_files_are_verified_as_the_document_says(release: Path, tmp_path: Path) -> None:
    keyring = tmp_path / "keyring"
    keyring.mkdir(mode=0o700)
    environment = os.environ | {"GNUPGHOME": str(keyring)}

    def verify() -> list[int]:
        commands = (
            ("gpg", "--batch", "--import", "dockershim.asc"),
            ("gpg", "--batch", "--verify", "SHA256SUMS.asc", "SHA256SUMS"),
            ("minisign", "-V", "-p", os.environ["TEST_MINISIGN"], "-m", "SHA256SUMS"),
            ("sha256sum", "--check", "--quiet", "--ignore-missing", "SHA256SUMS"),
        )
        return [
            subprocess.run(command, cwd=release, env=environment, capture_output=True).returncode
            for command in commands
        ]

    assert verify() == [0, 0, 0, 0]
    change(next(release.glob("*.deb")))
    assert verify() == [0, 0, 0, 1]
    change(release / "SHA256SUMS")
    assert verify() == [0, 1, 1, 1]
    listed = (RELEASE / "SHA256SUMS").read_text()
    for file in RELEASE.iterdir():
        if file.is_file() and not file.name.startswith("SHA256SUMS"):
            assert f"  {file.name}\n" in listed


@pytest.mark.parametrize("name", ["nobody", "", "--export-secret-keys"])
def test_a_key_that_gpg_does_not_have_is_refused(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GNUPGHOME", str(tmp_path))
    with pytest.raises(BuildError):
        check_key(name)


def test_apt_installs_from_it(debian: Debian) -> None:
    debian.run("apt-get", *ONLY, "update")
    debian.run("apt-get", *ONLY, "install", "-y", "--no-install-recommends", "dockershim-cri-dockerd")
    assert debian.run("dockershim", "--version") == f"dockershim {__version__}\n"


@pytest.mark.parametrize("file", ["InRelease", "main/binary-amd64/Packages.gz"])
def test_apt_refuses_a_changed_index(debian: Debian, release: Path, file: str) -> None:
    index = release / "apt/dists" / SUITE / file
    change(index)
    if file.endswith(".gz"):
        index.with_suffix("").unlink()  # apt would take the other form of it
    done = debian.attempt("apt-get", *ONLY, "-o", "APT::Update::Error-Mode=any", "update")
    assert done.returncode != 0
    assert debian.attempt("apt-get", *ONLY, "install", "-y", "dockershim").returncode != 0


def test_apt_refuses_a_changed_package(debian: Debian, release: Path) -> None:
    debian.run("apt-get", *ONLY, "update")
    change(next((release / "apt/pool" / SUITE).glob("dockershim_*_amd64.deb")))
    assert debian.attempt("apt-get", *ONLY, "install", "-y", "dockershim").returncode != 0


def test_dnf_installs_from_it(root: Root) -> None:
    root.dnf("install", "dockershim")
    assert (root.debian.root / "usr/bin/dockershim").exists()


@pytest.mark.parametrize("file", ["repodata/repomd.xml", "dockershim-[0-9]*.x86_64.rpm"])
def test_dnf_refuses_what_was_changed(root: Root, release: Path, file: str) -> None:
    (changed,) = (release / RPM).glob(file)
    change(changed)
    with pytest.raises(AssertionError):
        root.dnf("install", "dockershim")
    assert not (root.debian.root / "usr/bin/dockershim").exists()


def test_dnf_refuses_a_package_without_a_signature(root: Root, release: Path) -> None:
    """Somebody has the key of the index, but not that of the packages, or made a mistake at the release."""
    (package,) = (release / RPM).glob("dockershim-[0-9]*.x86_64.rpm")
    settings = root.debian.root / "etc/yum.repos.d/dockershim.repo"
    settings.write_text(settings.read_text().replace("repo_gpgcheck=1", "repo_gpgcheck=0"))
    (unsigned,) = RELEASE.glob(package.name)
    shutil.copy(unsigned, package)
    subprocess.run(["createrepo_c", "--quiet", release / RPM], check=True)
    with pytest.raises(AssertionError, match="is not signed"):
        root.dnf("install", "dockershim")
