"""An installation, an upgrade and an erase, with a pod that runs; and cri-dockerd's package, which is replaced."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from dockershim import __version__
from dockershim.server import cri_dockerd
from tests.deb.conftest import answers, containers, crictl, files, run_pod
from tests.rpm.conftest import Packages, Root, build

# On a busy machine the compilation of a thousand modules takes its time.
pytestmark = pytest.mark.timeout(300)

CONFIG = "etc/dockershim/config.toml"
SOCKET = "/run/cri-dockerd.sock"
SERVICE = "cri-docker.service"
#: The scriptlets of cri-dockerd's package are those of systemd's macros: a removal disables and stops its units.
CRI_DOCKERD = """\
Name: cri-dockerd
Version: 0.4.4
Release: 3
Summary: a stand-in
License: none
BuildArch: noarch
%description
x
%install
mkdir -p %{buildroot}/usr/bin %{buildroot}/usr/lib/systemd/system
echo old >%{buildroot}/usr/bin/cri-dockerd
for kind in service socket; do
  printf '[Unit]\\nDescription=old\\n[Install]\\nWantedBy=multi-user.target\\n' \\
    >%{buildroot}/usr/lib/systemd/system/cri-docker.$kind
done
%files
/usr/bin/cri-dockerd
/usr/lib/systemd/system/cri-docker.service
/usr/lib/systemd/system/cri-docker.socket
%preun
if [ $1 -eq 0 ]; then
  systemctl --no-reload disable --now cri-docker.service cri-docker.socket || :
fi
"""


def test_an_installation_starts_nothing_and_the_command_works(root: Root, new: Packages) -> None:
    debian = root.debian
    # Debian's rpm says that it is not for installing packages.
    said = root.rpm("--install", new.server).splitlines()
    assert [line for line in said if not line.startswith("rpm: ")] == []
    assert debian.asked_of_systemd() == ["daemon-reload", "try-restart dockershim.service"]
    assert not Path("/run/dockershim.sock").exists()
    for unit in ("dockershim.socket", "dockershim.service"):
        assert debian.attempt("systemctl", "is-enabled", unit).stdout == "disabled\n"
    assert debian.run("dockershim", "--version") == f"dockershim {__version__}\n"
    assert (debian.root / "usr/lib/dockershim/bin/python").resolve().name == f"python{os.environ['TEST_RPM_PYTHON']}"
    assert "--adopt-from" in debian.run("man", "-P", "cat", "dockershim")
    assert "dockershim" not in debian.run("systemd-analyze", "verify", "--man=no", "dockershim.service")
    # Every file is as the package has it, and what was compiled belongs to none.
    assert root.rpm("--verify", "dockershim") == ""
    compiled = debian.root / "usr/lib/dockershim/lib"
    assert list(compiled.rglob("*.pyc"))


def test_a_pod_is_the_same_after_an_upgrade_and_an_erase(
    root: Root, new: Packages, old: Packages, tmp_path: Path
) -> None:
    debian = root.debian
    clean = files(debian)
    root.rpm("--install", old.server)
    settings = debian.root / CONFIG
    settings.write_text(settings.read_text().replace('# log_level = "info"', 'log_level = "debug"'))
    # As a version would leave it that had one module more.
    of_another = debian.root / "usr/lib/dockershim/lib/python3.0/site-packages/gone/__pycache__/x.pyc"
    of_another.parent.mkdir(parents=True)
    of_another.touch()
    debian.run("systemctl", "start", "dockershim.service")
    assert re.search(r"^RuntimeName: +docker$", answers(), re.MULTILINE)
    pod, before, server = run_pod(tmp_path), containers(), debian.server()

    root.rpm("--upgrade", new.server)
    answers()
    assert debian.server() not in (None, server)
    assert containers() == before
    assert crictl("pods", "--quiet", "--state=ready", "--no-trunc").split() == [pod]
    assert 'log_level = "debug"' in settings.read_text()
    assert not (debian.root / "usr/lib/dockershim/lib/python3.0").exists()
    assert [line for line in debian.asked_of_systemd() if "stop" in line or "restart dockershim.socket" in line] == []

    root.rpm("--erase", "dockershim")
    assert debian.server() is None
    assert containers() == before
    left = {path for path in files(debian) ^ clean if not path.startswith("var/lib/dockershim/")}
    # Where rpm is at home, these belong to the package filesystem.
    left -= {"usr/share/licenses", "usr/share/zsh/site-functions"}
    assert left == {"etc/dockershim", f"{CONFIG}.rpmsave", "var/lib/dockershim"}


def test_an_upgrade_starts_no_server_that_was_stopped(root: Root, new: Packages, old: Packages) -> None:
    root.rpm("--install", old.server)
    root.rpm("--upgrade", new.server)
    assert root.debian.server() is None


def test_it_replaces_cri_dockerd_and_serves_in_its_place(
    root: Root, new: Packages, old: Packages, tmp_path: Path
) -> None:
    debian = root.debian
    folder = tmp_path / "peer"
    folder.mkdir()
    root.rpm("--install", build(CRI_DOCKERD, folder))
    debian.run("systemctl", "enable", SERVICE, "cri-docker.socket")
    root.rpm("--install", old.server)
    # Only on request: an upgrade of a node does not change its runtime.
    refused = root.attempt("--upgrade", old.drop_in)
    assert refused.returncode != 0
    assert "cri-dockerd conflicts with" in refused.stdout

    root.dnf("swap", "cri-dockerd", old.drop_in)
    assert debian.run("cri-dockerd", "--version") == f"cri-dockerd {cri_dockerd.VERSION} (dockershim-{__version__})\n"
    for unit in (SERVICE, "cri-docker.socket"):
        assert debian.run("systemctl", "is-enabled", unit) == "enabled\n"
    assert re.search(r"^RuntimeName: +docker$", answers(socket=SOCKET), re.MULTILINE)
    server = debian.server(SERVICE)
    assert Path(f"/proc/{server}/comm").read_text() == "cri-dockerd\n"
    run_pod(tmp_path, socket=SOCKET)
    running = containers()

    root.rpm("--upgrade", new.server, new.drop_in)
    answers(socket=SOCKET)
    assert debian.server(SERVICE) not in (None, server)
    assert containers() == running

    root.rpm("--erase", "dockershim-cri-dockerd")
    assert debian.server(SERVICE) is None
    assert debian.attempt("systemctl", "is-enabled", SERVICE).returncode != 0
    assert containers() == running
