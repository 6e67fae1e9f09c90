"""The file named cri-dockerd, copied to a clean Debian as tools do."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import pytest

from dockershim import __version__
from dockershim.server import cri_dockerd
from tests.deb.conftest import Debian, answers, crictl, files, run_pod
from tests.node.cache import REPOSITORY

pytestmark = pytest.mark.timeout(300)

SOCKET = "/run/cri-dockerd.sock"
VERSION = f"cri-dockerd {cri_dockerd.VERSION} (dockershim-{__version__})\n"
PROGRAM = "/usr/bin/cri-dockerd"


@pytest.fixture
def node(debian: Debian) -> Debian:
    """A Debian to which the file was copied, with the units that tools bring."""
    shutil.copy(os.environ["TEST_SINGLE_FILE"], debian.root / PROGRAM[1:])
    for unit in ("cri-docker.service", "cri-docker.socket"):
        shutil.copy(REPOSITORY / "deploy" / unit, debian.root / "etc/systemd/system")
    return debian


def test_its_version_needs_no_root_and_unpacks_nothing(node: Debian) -> None:
    before = files(node)
    assert node.run("setpriv", "--reuid=65534", "--clear-groups", "cri-dockerd", "--version") == VERSION
    assert node.run("cri-dockerd", "--version") == VERSION
    assert files(node) == before
    done = node.attempt("setpriv", "--reuid=65534", "--clear-groups", "cri-dockerd", "--help")
    assert done.returncode == 1
    assert "cri-dockerd: must be run as root: it unpacks its files in /var/lib/dockershim/program" in done.stdout


def test_it_serves_a_pod_from_its_first_start_on(node: Debian, tmp_path: Path) -> None:
    node.run("systemctl", "start", "cri-docker.service")
    answers(socket=SOCKET)
    server = node.server("cri-docker.service")
    assert Path(f"/proc/{server}/comm").read_text() == "cri-dockerd\n"
    pod = run_pod(tmp_path, socket=SOCKET)
    crictl("stopp", pod, socket=SOCKET)
    crictl("rmp", pod, socket=SOCKET)
    assert list((node.root / "tmp").iterdir()) == []
    (environment,) = (node.root / "var/lib/dockershim/program").glob("[0-9]*-*")
    # What the tools of a node ask it next takes the time of two starts of Python.
    begun = time.monotonic()
    assert node.run("cri-dockerd", "--help").startswith("dockershim, called by the name cri-dockerd")
    assert time.monotonic() - begun < 5
    assert environment.exists()


@pytest.mark.parametrize("folder", ["var/lib/dockershim", "var/lib/dockershim/program"])
@pytest.mark.parametrize("what", ["link", "open", "owner"])
def test_a_folder_of_others_is_refused(node: Debian, folder: str, what: str) -> None:
    path = node.root / folder
    path.parent.mkdir(exist_ok=True)
    if what == "link":
        (node.root / "tmp/theirs").mkdir()
        path.symlink_to("/tmp/theirs")
    else:
        path.mkdir()
        path.chmod(0o777 if what == "open" else 0o755)
        os.chown(path, 12345 if what == "owner" else 0, 0)
    done = node.attempt("cri-dockerd", "--help")
    assert done.returncode == 1
    assert f"cri-dockerd: /{folder}: " in done.stdout
    assert list((node.root / "tmp").rglob("*")) == [node.root / "tmp/theirs"] * (what == "link")
