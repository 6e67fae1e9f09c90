"""The page's commands bring a new Debian to a pod under a kubelet, and back to the same machine.

In between the package is upgraded under the pod; at the end it is purged.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from deploy.deb.__main__ import file_name
from deploy.targets import TARGETS
from tests.deb.repacked import repacked
from tests.first_pod import clean, page
from tests.node.cache import REPOSITORY
from tests.vm.guest import Guest, GuestError
from tests.vm.machines import MACHINES
from tests.vm.running import running

PACKAGE = REPOSITORY / "dist" / file_name(TARGETS["trixie"], "amd64")
# Its version sorts after every other.
NEWER = "9999"
# With qemu and without KVM the whole page takes a quarter of an hour, and three times as long on a busy machine.
pytestmark = pytest.mark.timeout(3600)
COMMAND_TIME = 1800.0
NGINX = "registry.k8s.io/e2e-test-images/nginx:1.14-2"
SETUP = "2. Settings"
LAST_SECTION = "5. Take it away again"
DAEMON_JSON = "/etc/docker/daemon.json"


@pytest.fixture(scope="module")
def guest(request: pytest.FixtureRequest) -> Iterator[Guest]:
    with running(MACHINES[request.config.getoption("--guest")], clean.provided(PACKAGE)) as booted:
        yield booted


@pytest.fixture
def tell(capsys: pytest.CaptureFixture[str]) -> Callable[[str], None]:
    """Prints a line at once: the page takes long."""

    def line(text: str) -> None:
        with capsys.disabled():
            os.write(1, f"{text}\n".encode())

    return line


def do(guest: Guest, command: page.Command, tell: Callable[[str], None]) -> None:
    began = time.monotonic()
    try:
        guest.sh(command.text, timeout=COMMAND_TIME)
    except GuestError as error:
        journal = guest.journal("dockershim", "--unit=kubelet", "--lines=60", check=False)
        pytest.fail(f"{error}\n{guest.run('dockershim', 'doctor', check=False)}\n{journal}")
    tell(f"{time.monotonic() - began:7.1f} s  {command}")


def settings(guest: Guest) -> str:
    """The files that setup may change, with their content, and whether its units are on."""
    folders = "/etc/docker /etc/dockershim /etc/cni /etc/modules-load.d /etc/sysctl.d"
    return guest.sh(
        f"find {folders} -type f -exec sha256sum {{}} + | sort;"
        " sysctl net.ipv4.ip_forward fs.inotify.max_user_instances;"
        " systemctl is-enabled dockershim.service dockershim.socket;"
        " systemctl is-active dockershim.service dockershim.socket",
        check=False,
    )


def containers(guest: Guest) -> list[str]:
    """The ids of the engine's running containers."""
    return sorted(guest.run("docker", "ps", "--quiet", "--no-trunc").split())


def test_the_page_ends_with_a_pod_that_outlives_an_upgrade(
    guest: Guest, tmp_path: Path, tell: Callable[[str], None]
) -> None:
    commands = page.commands()
    before = ""
    for command in commands:
        if command.section == SETUP and not before:
            before = settings(guest)
        if command.section != LAST_SECTION:
            do(guest, command, tell)
    assert "web-guest" in guest.run("crictl", "pods", "--state=ready")
    assert guest.run("crictl", "ps", "--quiet", "--name=nginx").strip() in containers(guest)

    _upgrade_under_the_pod(guest, tmp_path)
    _take_the_settings_of_install(guest)

    for command in commands:
        if command.section == LAST_SECTION:
            do(guest, command, tell)
    assert containers(guest) == []
    assert settings(guest) == before
    _purge(guest)
    assert guest.run("systemctl", "--failed", "--no-legend") == ""


def _upgrade_under_the_pod(guest: Guest, folder: Path) -> None:
    newer = repacked(PACKAGE, NEWER, folder)
    guest.copy(newer, f"/srv/{newer.name}")
    before, pid = containers(guest), _main_pid(guest)
    guest.run("systemctl", "reload", "dockershim.service")
    assert _main_pid(guest) == pid
    guest.run("apt-get", "install", "-y", f"/srv/{newer.name}", timeout=COMMAND_TIME)
    assert guest.run("dpkg-query", "--show", "--showformat=${Version}", "dockershim") == NEWER
    assert _main_pid(guest) not in (pid, "0")
    assert "web-guest" in guest.run("crictl", "pods", "--state=ready")
    assert containers(guest) == before
    assert "welcome to nginx" in guest.run("curl", "-fsS", "http://127.0.0.1:8080/")


def _take_the_settings_of_install(guest: Guest) -> None:
    """With live-restore, which setup turns on, the restart that they need leaves the pod alone."""
    before, of_setup = containers(guest), guest.run("cat", DAEMON_JSON)
    for content in (page.engine_settings(), of_setup):
        guest.sh(f"cat > {DAEMON_JSON}", input=content)
        guest.run("dockerd", "--validate", f"--config-file={DAEMON_JSON}")
        guest.run("systemctl", "restart", "docker.service", timeout=COMMAND_TIME)
        assert containers(guest) == before
        if content != of_setup:
            assert "65536" in guest.run("docker", "run", "--rm", NGINX, "sh", "-c", "ulimit -n", timeout=COMMAND_TIME)


def _main_pid(guest: Guest) -> str:
    return guest.run("systemctl", "show", "--property=MainPID", "--value", "dockershim.service").strip()


def _purge(guest: Guest) -> None:
    guest.run("apt-get", "purge", "-y", "dockershim", timeout=COMMAND_TIME)
    left = "/usr/bin/dockershim /usr/lib/dockershim /var/lib/dockershim /run/dockershim /run/dockershim.sock"
    assert guest.sh(f"ls -d {left} 2>/dev/null", check=False) == ""
    assert guest.run("systemctl", "list-unit-files", "--no-legend", "dockershim*", check=False) == ""
    assert guest.sh("ls -d /etc/dockershim 2>/dev/null", check=False) == ""
