"""What is left of pods when the machine starts anew: after a reboot, and after a power cut."""

from __future__ import annotations

import asyncio
import itertools
import re
from dataclasses import dataclass

from dockershim.api.cri.v1 import api_pb2 as api
from tests.cri_client import CRI
from tests.engine import pods
from tests.vm.cgroups import burstable
from tests.vm.guest import Guest

ADDRESSES = "/var/lib/cni/networks/test"
CHECKPOINTS = "/var/lib/dockershim/sandbox"
PINS = "/run/netns"
COUNTING = "i=0; while :; do i=$((i+1)); echo line $i; sleep 0.2; done"

_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Running:
    """A pod with a container that writes numbered lines."""

    config: api.PodSandboxConfig
    sandbox: str
    container: str

    @property
    def log(self) -> str:
        return f"{self.config.log_directory}/main.log"


async def run(cri: CRI, name: str) -> Running:
    config = burstable(f"{name}-{next(_numbers)}")
    sandbox = await pods.run_pod(cri, config)
    return Running(config, sandbox, await pods.start(cri, sandbox, pods.container_config(COUNTING), config))


def entries(guest: Guest, folder: str) -> set[str]:
    """The names in a folder that stand for pods."""
    names = guest.run("ls", "-A", folder, check=False).split()
    return {name for name in names if name != "lock" and not name.startswith("last_reserved_ip")}


def numbers(guest: Guest, log: str) -> list[int]:
    return [int(number) for number in re.findall(r" F line (\d+)$", guest.read(log), flags=re.MULTILINE)]


async def check_dead(cri: CRI, one: Running) -> None:
    """The pod is there as one that has ended."""
    assert (await pods.sandbox_status(cri, one.sandbox)).state == api.SANDBOX_NOTREADY
    assert (await pods.status(cri, one.container)).state == api.CONTAINER_EXITED


async def check_goes_on(guest: Guest, cri: CRI, dead: Running) -> None:
    """A kubelet replaces the pod: one of the same name runs, the old one goes, and nothing of either is left."""
    again = burstable(dead.config.metadata.uid)
    again.metadata.attempt = 1
    sandbox = await pods.run_pod(cri, again)
    container = await pods.start(cri, sandbox, pods.container_config("echo started; exec sleep 1000", "again"), again)
    assert (await pods.status(cri, container)).state == api.CONTAINER_RUNNING
    assert (await pods.sandbox_status(cri, sandbox)).network.ip
    for sandbox_id in (dead.sandbox, sandbox):
        await pods.remove_pod(cri, sandbox_id)
    assert await pods.sandboxes(cri) == {}
    for folder in (ADDRESSES, CHECKPOINTS, PINS):
        assert entries(guest, folder) == set(), folder


async def test_pods_that_ran_at_a_reboot_are_replaced(guest: Guest) -> None:
    async with CRI(guest.cri) as cri:
        one = await run(cri, "reboot")
        await asyncio.sleep(3)
    guest.reboot()
    async with CRI(guest.cri) as cri:
        await check_dead(cri, one)
        lines = numbers(guest, one.log)
        assert lines == list(range(1, len(lines) + 1))
        assert lines
        assert "Traceback" not in guest.journal()
        await check_goes_on(guest, cri, one)


async def test_pods_that_ran_at_a_power_cut_are_replaced(guest: Guest) -> None:
    """What a pod's teardown needs was on the disk before the pod started; of its log the end may be missing."""
    async with CRI(guest.cri) as cri:
        old = await run(cri, "old")
        guest.run("sync")
        await asyncio.sleep(5)
        new = await run(cri, "new")
        await asyncio.sleep(2)
    guest.cut_power()
    guest.boot()
    async with CRI(guest.cri) as cri:
        journal = guest.journal()
        assert "Traceback" not in journal
        assert "at least 0 bytes" not in journal
        # The engine may have lost the newer container; then the server has to tear its pod down by the checkpoint.
        await check_dead(cri, old)
        listed = await pods.sandboxes(cri)
        assert {sandbox.state for sandbox in listed.values()} == {api.SANDBOX_NOTREADY}
        lines = numbers(guest, old.log)
        assert lines
        assert lines == list(range(1, len(lines) + 1))
        if new.sandbox in listed:
            await pods.remove_pod(cri, new.sandbox)
        await check_goes_on(guest, cri, old)
