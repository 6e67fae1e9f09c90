"""What is left of pods when the machine starts anew: after a reboot, and after a power cut."""

from __future__ import annotations

import asyncio

from dockershim.api.cri.v1 import api_pb2 as api
from tests.cri_client import CRI
from tests.engine import pods
from tests.vm import counting
from tests.vm.cgroups import burstable
from tests.vm.counting import Running
from tests.vm.guest import Guest

ADDRESSES = "/var/lib/cni/networks/test"
CHECKPOINTS = "/var/lib/dockershim/sandbox"
PINS = "/run/netns"


def entries(guest: Guest, folder: str) -> set[str]:
    """The names in a folder that stand for pods."""
    names = guest.run("ls", "-A", folder, check=False).split()
    return {name for name in names if name != "lock" and not name.startswith("last_reserved_ip")}


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
        one = await counting.run(cri, "reboot")
        await asyncio.sleep(3)
    guest.reboot()
    async with CRI(guest.cri) as cri:
        await check_dead(cri, one)
        assert counting.is_whole(one.lines(guest))
        assert "Traceback" not in guest.journal()
        await check_goes_on(guest, cri, one)


async def test_pods_that_ran_at_a_power_cut_are_replaced(guest: Guest) -> None:
    """What a pod's teardown needs was on the disk before the pod started; of its log the end may be missing."""
    async with CRI(guest.cri) as cri:
        old = await counting.run(cri, "old")
        guest.run("sync")
        await asyncio.sleep(5)
        new = await counting.run(cri, "new")
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
        assert counting.is_whole(old.lines(guest))
        if new.sandbox in listed:
            await pods.remove_pod(cri, new.sandbox)
        await check_goes_on(guest, cri, old)
