"""The package dockershim-cri-dockerd: what tools look for on a node with cri-dockerd."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dockershim.server import cri_dockerd
from tests.deb.conftest import Debian, answers, containers, crictl, files, run_pod
from tests.node.packages import run

# On a busy machine dpkg and the compilation of a thousand modules take their time.
pytestmark = pytest.mark.timeout(300)

SOCKET = "/run/cri-dockerd.sock"
SERVICE = "cri-docker.service"
#: As in the drop-in of minikube. An infra image would have to be pulled.
FLAGS = "--container-runtime-endpoint fd:// --network-plugin=cni --hairpin-mode=hairpin-veth"


def test_it_replaces_cri_dockerd_and_serves_in_its_place(
    debian: Debian, drop_ins: tuple[Path, Path], tmp_path: Path
) -> None:
    """An installation starts it, an upgrade restarts it under a pod that runs, and a purge leaves nothing."""
    drop_in = debian.root / f"etc/systemd/system/{SERVICE}.d/10-cni.conf"
    drop_in.parent.mkdir(parents=True)
    drop_in.write_text(f"[Service]\nExecStart=\nExecStart=/usr/bin/cri-dockerd {FLAGS}\n")
    before = files(debian)
    debian.install(debian.old_package, drop_ins[1])
    assert debian.run("cri-dockerd", "--version") == f"cri-dockerd {cri_dockerd.VERSION} (dockershim-0.1.0)\n"
    for unit in (SERVICE, "cri-docker.socket"):
        assert debian.run("systemctl", "is-enabled", unit) == "enabled\n"
    units = (SERVICE, "cri-docker.socket", "cri-dockerd.service", "cri-dockerd.socket")
    assert "cri-docker" not in debian.run("systemd-analyze", "verify", "--man=no", *units)
    assert Path(SOCKET).is_socket()
    assert re.search(r"^RuntimeName: +docker$", answers(socket=SOCKET), re.MULTILINE)
    server = debian.server(SERVICE)
    assert Path(f"/proc/{server}/comm").read_text() == "cri-dockerd\n"
    assert FLAGS.split() == Path(f"/proc/{server}/cmdline").read_text().split("\0")[3:-1]
    pod, running = run_pod(tmp_path, socket=SOCKET), containers()

    debian.install(debian.package, drop_ins[0])
    answers(socket=SOCKET)
    assert debian.server(SERVICE) not in (None, server)
    assert containers() == running
    assert [line for line in debian.asked_of_systemd() if "cri-docker.socket" in line and "restart" in line] == []
    crictl("stopp", pod, socket=SOCKET)
    crictl("rmp", pod, socket=SOCKET)

    debian.run("apt-get", "remove", "-y", "dockershim-cri-dockerd")
    assert debian.server(SERVICE) is None
    debian.run("apt-get", "purge", "-y", "dockershim-cri-dockerd", "dockershim")
    assert files(debian) ^ before == set()


def test_a_package_of_cri_dockerd_goes(debian: Debian, drop_ins: tuple[Path, Path], tmp_path: Path) -> None:
    old = tmp_path / "old"
    for folder in ("DEBIAN", "usr/bin"):
        (old / folder).mkdir(parents=True)
    (old / "usr/bin/cri-dockerd").write_text("old")
    control = "Package: cri-dockerd\nVersion: 0.4.4~3-0~debian-bookworm\nArchitecture: all\nMaintainer: none\n"
    (old / "DEBIAN/control").write_text(f"{control}Description: a stand-in\n")
    package = debian.root / "tmp/cri-dockerd.deb"
    run("dpkg-deb", "--root-owner-group", "-b", old, package)
    debian.run("dpkg", "-i", f"/tmp/{package.name}")
    assert "cri-dockerd" in debian.install(debian.package, drop_ins[0])
    status = debian.attempt("dpkg-query", "--show", "--showformat=${Status}", "cri-dockerd")
    assert "ok installed" not in status.stdout
    assert debian.run("cri-dockerd", "--version").startswith("cri-dockerd ")
