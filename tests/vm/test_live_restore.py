"""An engine with live-restore is restarted under pods: they go on, their logs are whole, and new ones start."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dockershim.api.cri.v1 import api_pb2 as api
from tests.cri_client import CRI
from tests.engine import pods
from tests.vm import counting, daemon
from tests.vm.guest import Guest


@pytest.fixture
def live_restore(guest: Guest) -> Iterator[None]:
    """As docs/install.md sets it: the engine takes it without a restart."""
    with daemon.changed(guest, {"live-restore": True}):
        yield


async def test_pods_go_on_while_the_engine_and_then_both_are_restarted(
    guest: Guest, cri: CRI, live_restore: None
) -> None:
    one = await counting.run(cri, "restored")
    before = (await pods.status(cri, one.container)).started_at
    for units in (("docker",), ("docker", "dockershim")):
        guest.run("systemctl", "restart", *units, timeout=300)
        await one.goes_on(guest)
        # A restart of the server closes the connections that a kubelet has, and it makes new ones.
        async with CRI(guest.cri) as again:
            await again.runtime.Version(api.VersionRequest(), timeout=90, wait_for_ready=True)
            status = await pods.status(again, one.container)
            assert (status.state, status.started_at) == (api.CONTAINER_RUNNING, before)
            async with pods.pod(again) as sandbox_id:
                assert (await pods.sandbox_status(again, sandbox_id)).network.ip
    assert counting.is_whole(one.lines(guest))
    async with CRI(guest.cri) as again:
        await pods.remove_pod(again, one.sandbox)
