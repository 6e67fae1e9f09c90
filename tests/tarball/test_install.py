"""./install.sh on a clean Debian that has Python, and neither pip nor a network."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from dockershim import __version__
from dockershim.server import config
from tests.deb.conftest import Debian, answers, containers, crictl, files, run_pod
from tests.node.cache import REPOSITORY
from tests.tarball.conftest import OLD, unpacked

pytestmark = pytest.mark.timeout(300)

COMMAND = "/usr/local/bin/dockershim"
KEPT = {"etc/dockershim", "etc/dockershim/config.toml"}


def test_there_is_no_network_and_no_pip(debian: Debian) -> None:
    assert debian.attempt("python3", "-m", "pip", "--version").returncode
    assert debian.attempt("python3", "-c", "import ensurepip").returncode
    routes = Path("/proc/net/route").read_text().splitlines()[1:]
    assert [route for route in routes if route.split()[1] == "00000000"] == []


def test_a_pod_is_the_same_after_an_upgrade_and_removal_leaves_nothing(debian: Debian, tmp_path: Path) -> None:
    before = files(debian)
    old = unpacked(debian, debian.old_package)
    said = debian.run(f"{old}/install.sh")
    assert "Nothing was started. Next:\n  /usr/local/bin/dockershim setup " in said
    assert set(debian.asked_of_systemd()) == {"daemon-reload"}
    assert debian.run(COMMAND, "--version") == f"dockershim {OLD}\n"
    debian.run("systemctl", "enable", "dockershim.socket", "dockershim.service")
    debian.run("systemctl", "start", "dockershim.service")
    answers()
    server = debian.server()
    assert Path(f"/proc/{server}/comm").read_text() == "dockershim\n"
    pod, running = run_pod(tmp_path), containers()

    new = unpacked(debian, debian.package)
    assert "The service was restarted, if it ran" in debian.run("sh", "-c", f"cd {new} && ./install.sh")
    answers()
    assert debian.server() not in (None, server)
    assert containers() == running
    assert debian.run(COMMAND, "--version") == f"dockershim {__version__}\n"
    assert len(list((debian.root / "usr/local/lib/dockershim").glob("[0-9]*-*"))) == 1

    server = debian.server()
    debian.run(f"{new}/install.sh")
    assert debian.server() == server
    crictl("stopp", pod)
    crictl("rmp", pod)

    state = set(files(debian)) - before
    said = debian.run("/usr/local/lib/dockershim/install.sh", "--uninstall")
    assert "Pods keep running; /etc/dockershim and /var/lib/dockershim stay" in said
    assert debian.server() is None
    left = files(debian) ^ before
    assert left >= KEPT
    assert {path for path in left if not path.startswith("var/lib/dockershim")} == KEPT
    assert state >= left
    assert "is not installed" in debian.run(f"{new}/install.sh", "--uninstall")


def test_its_files_work(debian: Debian) -> None:
    folder = unpacked(debian, debian.package)
    debian.run(f"{folder}/install.sh", "--prefix", "/opt/dockershim/")
    command = "/opt/dockershim/bin/dockershim"
    (debian.root / "tmp/json.py").write_text("raise SystemExit('the wrong json')")
    assert debian.run("sh", "-c", f"cd /tmp && {command} config default") == config.default_file()
    said = debian.run("systemd-analyze", "verify", "--man=no", "dockershim.service", "dockershim.socket")
    assert "dockershim" not in said
    pages = ("-M", "/opt/dockershim/share/man", "-P", "cat")
    assert "--adopt-from" in debian.run("man", *pages, "dockershim")
    assert "adopt_from" in debian.run("man", *pages, "dockershim-config")
    # setup copies the program of the wheel, where it is not in /usr/local/bin.
    assert debian.attempt("/opt/dockershim/bin/dockershim-runc").returncode
    debian.run("ln", "-s", command, "/usr/bin/cri-dockerd")
    assert debian.run("cri-dockerd", "--version").startswith("cri-dockerd ")


def test_each_command_of_the_document_works(debian: Debian) -> None:
    shutil.copy(debian.package, debian.root / "root")
    blocks = re.findall(r"(?:^    .*\n)+", (REPOSITORY / "docs/tarball.md").read_text(), re.MULTILINE)
    commands = [line.strip() for block in blocks for line in block.splitlines()]
    assert [command.split()[0].rpartition("/")[2] for command in commands] == ["tar", "install.sh", "install.sh"]
    for command in commands:
        debian.run("sh", "-c", f"cd /root && {command}")


def test_what_is_killed_in_the_middle_leaves_the_old_one(debian: Debian) -> None:
    debian.run(f"{unpacked(debian, debian.old_package)}/install.sh")
    new, home = unpacked(debian, debian.package), debian.root / "usr/local/lib/dockershim"
    command = ["chroot", str(debian.root), f"{new}/install.sh"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as upgrade:
        while not (home / ".new/lib").exists():
            assert upgrade.poll() is None
            time.sleep(0.01)
        upgrade.send_signal(signal.SIGKILL)
    assert debian.run(COMMAND, "--version") == f"dockershim {OLD}\n"
    debian.run(f"{new}/install.sh")
    assert debian.run(COMMAND, "--version") == f"dockershim {__version__}\n"
    assert not (home / ".new").exists()


@pytest.mark.parametrize("broken", ["missing", "damaged"])
def test_a_tarball_that_is_not_whole_changes_nothing(debian: Debian, broken: str) -> None:
    debian.run(f"{unpacked(debian, debian.old_package)}/install.sh")
    before, folder = files(debian), unpacked(debian, debian.package)
    (wheel,) = (debian.root / folder[1:]).glob("wheels/h11-*.whl")
    wheel.unlink()
    if broken == "damaged":
        wheel.write_bytes(b"PK")
    done = debian.attempt(f"{folder}/install.sh")
    assert done.returncode == 1
    assert f"install.sh: wheels/{wheel.name}: " in done.stdout
    assert files(debian) == before
    assert debian.run(COMMAND, "--version") == f"dockershim {OLD}\n"


def test_a_distribution_without_python_is_told_what_to_install(debian: Debian) -> None:
    folder = unpacked(debian, debian.package)
    done = debian.attempt("env", "PATH=/nowhere", "/bin/sh", f"{folder}/install.sh")
    assert done.returncode == 1
    assert "there is no Python 3.11 to 3.14 in the PATH. Install the package python3" in done.stdout


def test_only_root_installs(debian: Debian) -> None:
    folder = unpacked(debian, debian.package)
    shutil.copytree(debian.root / folder[1:], debian.root / "tmp/tarball")
    done = debian.attempt("setpriv", "--reuid=65534", "--clear-groups", "/tmp/tarball/install.sh")
    assert (done.returncode, done.stdout) == (1, "install.sh: must be run as root\n")
