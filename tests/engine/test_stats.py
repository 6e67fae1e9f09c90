"""Statistics of containers, compared with what the containers are known to do."""

from __future__ import annotations

import asyncio
from typing import Any

from dockershim.api.cri.v1 import api_pb2 as api
from tests.cri_client import CRI
from tests.engine.pods import container_config, pod, pull, refused, start

MIB = 1024 * 1024


async def stats(cri: CRI, container_id: str) -> api.ContainerStats:
    response = await cri.runtime.ContainerStats(api.ContainerStatsRequest(container_id=container_id))
    found: api.ContainerStats = response.stats
    return found


async def test_a_busy_container_uses_one_core_and_a_silent_one_none(cri: CRI) -> None:
    await pull(cri)
    async with pod(cri) as sandbox_id:
        busy = await start(cri, sandbox_id, container_config("while :; do :; done", name="busy"))
        silent = await start(cri, sandbox_id, container_config(name="silent"))
        before = await stats(cri, busy)
        await asyncio.sleep(1)
        after = await stats(cri, busy)
        used = after.cpu.usage_core_nano_seconds.value - before.cpu.usage_core_nano_seconds.value
        elapsed = after.cpu.timestamp - before.cpu.timestamp
        # The other core's load takes some of it; nothing can add to it.
        assert 0.2 < used / elapsed < 1.1
        assert after.cpu.usage_nano_cores.value == used * 10**9 // elapsed
        assert (await stats(cri, silent)).cpu.usage_core_nano_seconds.value < used


async def test_the_working_set_has_no_page_cache(cri: CRI) -> None:
    await pull(cri)
    async with pod(cri) as sandbox_id:
        container_id = await start(
            cri, sandbox_id, container_config("dd if=/dev/zero of=/file bs=1M count=64; sync; exec sleep 1000")
        )
        async with asyncio.timeout(20):
            while (found := await stats(cri, container_id)).memory.usage_bytes.value < 64 * MIB:
                await asyncio.sleep(0.1)
        assert found.memory.working_set_bytes.value < 32 * MIB
        assert not found.memory.HasField("available_bytes")


async def test_lists_and_their_filters(cri: CRI) -> None:
    await pull(cri)
    async with pod(cri) as first, pod(cri) as second:
        one = await start(cri, first, container_config(labels={"colour": "red"}))
        two = await start(cri, second, container_config("true"))

        async def listed(**wanted: Any) -> dict[str, api.ContainerStats]:
            request = api.ListContainerStatsRequest(filter=api.ContainerStatsFilter(**wanted))
            response = await cri.runtime.ListContainerStats(request)
            return {item.attributes.id: item for item in response.stats}

        assert set(await listed()) == {one, two}
        assert set(await listed(id=one)) == {one}
        assert set(await listed(pod_sandbox_id=second)) == {two}
        assert set(await listed(label_selector={"colour": "red"})) == {one}
        assert set(await listed(label_selector={"colour": "blue"})) == set()
        async with asyncio.timeout(10):
            while (ended := (await listed(id=two))[two]).HasField("cpu"):
                await asyncio.sleep(0.05)
        assert ended.attributes.metadata.name == "main"


async def test_a_container_that_does_not_exist(cri: CRI) -> None:
    async with refused("NOT_FOUND"):
        await stats(cri, "0" * 64)
