"""The server under systemd, by the units of deploy/: readiness, watchdog, socket, reload, journal, restart."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import pytest

from dockershim.api.cri.v1 import api_pb2 as api
from tests.cri_client import CRI
from tests.engine import pods
from tests.vm.cgroups import burstable
from tests.vm.guest import Guest
from tests.waiting import until

CONFIG = "/etc/dockershim/config.toml"
WATCHDOG = 20  # seconds, instead of the unit's 60


def show(guest: Guest, name: str, unit: str = "dockershim") -> str:
    return guest.run("systemctl", "show", f"--property={name}", "--value", unit).strip()


async def version(cri: CRI) -> str:
    """The server's name, also if it has to start first."""
    answer = await cri.runtime.Version(api.VersionRequest(), timeout=90, wait_for_ready=True)
    return str(answer.runtime_name)


async def wait_for_journal(guest: Guest, text: str, cursor: str, timeout: float = 90) -> str:
    """What the server and systemd have written since ``cursor``, once ``text`` is in it."""
    deadline = time.monotonic() + timeout
    while text not in (written := guest.journal("dockershim", f"--after-cursor={cursor}")):
        assert time.monotonic() < deadline, f"{text!r} is not in the journal:\n{written}"
        await asyncio.sleep(1)
    return written


def cursor_of(guest: Guest) -> str:
    """The end of the journal."""
    return guest.run("journalctl", "--lines=0", "--show-cursor").rpartition("-- cursor: ")[2].strip()


@pytest.mark.guest
async def test_the_unit_is_ready_and_has_its_privileges(guest: Guest, cri: CRI) -> None:
    assert await version(cri) == "docker"
    for unit in ("dockershim.service", "dockershim.socket", "docker.service"):
        assert show(guest, "ActiveState", unit) == "active"
    pid = show(guest, "MainPID")
    assert guest.read(f"/proc/{pid}/oom_score_adj") == "-999"
    assert guest.run("ps", "-o", "ni=", "-p", pid).strip() == "-10"
    # Pods' network namespaces are pinned by mounts, which all of the machine has to see.
    namespaces = guest.run("readlink", "/proc/1/ns/mnt", f"/proc/{pid}/ns/mnt").split()
    assert namespaces[0] == namespaces[1]
    assert guest.run("stat", "--format=%a", "/run/dockershim.sock").strip() == "660"


async def test_the_server_writes_its_pods_into_the_journal(guest: Guest, cri: CRI) -> None:
    cursor = cursor_of(guest)
    async with pods.pod(cri, burstable("journal")) as sandbox_id:
        written = await wait_for_journal(guest, sandbox_id, cursor)
    assert "rpc=RunPodSandbox pod=tests/journal" in written


@pytest.fixture
def kept_config(guest: Guest) -> Iterator[str]:
    """What the configuration file holds, and holds again after the test."""
    before = guest.read(CONFIG)
    yield before
    guest.sh(f"cat > {CONFIG}; systemctl reload dockershim", input=f"{before}\n")


async def test_a_reload_applies_the_file_in_the_same_process(guest: Guest, cri: CRI, kept_config: str) -> None:
    pid, cursor = show(guest, "MainPID"), cursor_of(guest)
    guest.sh(f"cat > {CONFIG}; systemctl reload dockershim", input=f'{kept_config}\nlog_level = "debug"\n')
    await asyncio.sleep(2)
    await version(cri)
    written = await wait_for_journal(guest, "rpc=Version", cursor)
    assert " DEBUG " in written
    cursor = cursor_of(guest)
    guest.sh(f"cat > {CONFIG}; systemctl reload dockershim", input=f'{kept_config}\nlog_level = "loud"\n')
    await wait_for_journal(guest, "log_level", cursor)
    assert await version(cri) == "docker"
    assert show(guest, "MainPID") == pid


async def test_a_call_starts_the_server_and_waits_for_it(guest: Guest, cri: CRI) -> None:
    """The socket is systemd's: a call comes while no server is there, and is answered by the one that it starts."""
    guest.run("systemctl", "stop", "dockershim.service")
    assert show(guest, "ActiveState") == "inactive"
    assert show(guest, "ActiveState", "dockershim.socket") == "active"
    assert await version(cri) == "docker"
    assert show(guest, "ActiveState") == "active"


async def test_pods_go_on_while_the_server_is_away_and_their_logs_are_whole(guest: Guest, cri: CRI) -> None:
    sandbox = burstable("away")
    async with pods.pod(cri, sandbox) as sandbox_id:
        command = "i=0; while :; do i=$((i+1)); echo line $i; sleep 1; done"
        container_id = await pods.start(cri, sandbox_id, pods.container_config(command), sandbox)
        before = (await pods.status(cri, container_id)).started_at
        guest.run("systemctl", "stop", "dockershim.service")
        last = guest.run("docker", "logs", "--tail=1", container_id)
        await asyncio.sleep(3)
        assert guest.run("docker", "logs", "--tail=1", container_id) != last
        guest.run("systemctl", "start", "dockershim.service")
        await version(cri)
        status = await pods.status(cri, container_id)
        assert (status.state, status.started_at) == (api.CONTAINER_RUNNING, before)
        log = f"{sandbox.log_directory}/main.log"
        await until(lambda: f"F {last}" in guest.read(log), timeout=60)
        numbers = [int(line.rpartition(" ")[2]) for line in guest.read(log).splitlines()]
        assert numbers == list(range(1, len(numbers) + 1))


@pytest.fixture
def short_watchdog(guest: Guest) -> Iterator[None]:
    folder = "/run/systemd/system/dockershim.service.d"
    guest.sh(f"mkdir -p {folder}; cat > {folder}/test.conf", input=f"[Service]\nWatchdogSec={WATCHDOG}\n")
    guest.sh("systemctl daemon-reload; systemctl restart dockershim")
    yield
    guest.sh(f"rm -r {folder}; systemctl daemon-reload; systemctl restart dockershim")


async def test_the_watchdog_replaces_a_server_that_hangs(guest: Guest, cri: CRI, short_watchdog: None) -> None:
    pid, cursor = show(guest, "MainPID"), cursor_of(guest)
    await asyncio.sleep(WATCHDOG + 5)
    assert show(guest, "MainPID") == pid, "a server that works was replaced"
    guest.run("kill", "-STOP", pid)
    written = await wait_for_journal(guest, "Started dockershim.service", cursor, timeout=WATCHDOG + 120)
    assert "Watchdog timeout" in written
    assert show(guest, "MainPID") != pid
    assert await version(cri) == "docker"
