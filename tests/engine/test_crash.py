"""What is left after the server was killed while a pod ended, or the engine has lost its pods: nothing.

What a killed RunPodSandbox leaves is in test_reconcile. The simulation (tests/sim) kills the server at any step of any
call; here it is killed for real at two.
"""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest
from docker import DockerClient

from dockershim.api.cri.v1 import api_pb2 as api
from dockershim.network.netns import Pins
from tests.cri_client import CRI
from tests.engine import networks
from tests.engine.killed import crashing, dies
from tests.engine.pods import (
    container_config,
    containers,
    create,
    pull,
    remove_pod,
    run_pod,
    sandbox_config,
    sandboxes,
    start,
)
from tests.node.server import Server
from tests.node.state import Snapshot
from tests.waiting import until

STOP_STEP, REMOVE_STEP = "tear down the network", "remove the infra container"

PORT = [api.PortMapping(container_port=80, host_port=18080)]


async def spawn(program: str, stdin: bytes = b"") -> bytes:
    process = await asyncio.create_subprocess_exec(
        program, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    stdout, _ = await process.communicate(stdin)
    assert process.returncode == 0
    return stdout


async def remove_all(server: Server) -> None:
    """Stop and remove each listed sandbox, twice, as a kubelet does after the restart."""
    async with CRI(server.target) as cri:
        for sandbox_id in await sandboxes(cri):
            for _ in range(2):
                await remove_pod(cri, sandbox_id)
        assert not await sandboxes(cri)
        assert not await containers(cri)


@pytest.mark.parametrize("step", [STOP_STEP, REMOVE_STEP])
async def test_a_crash_while_a_pod_ends_leaves_nothing(
    server: Server, step: str, snapshot: Callable[[], Snapshot]
) -> None:
    before = snapshot()
    async with CRI(server.target) as cri:
        await pull(cri)
        sandbox_id = await run_pod(cri, sandbox_config(port_mappings=PORT))
        await start(cri, sandbox_id)
    async with crashing(server, step) as cri:
        if step == STOP_STEP:
            await dies(cri.runtime.StopPodSandbox(api.StopPodSandboxRequest(pod_sandbox_id=sandbox_id)))
        else:
            await dies(cri.runtime.RemovePodSandbox(api.RemovePodSandboxRequest(pod_sandbox_id=sandbox_id)))
    async with CRI(server.target) as cri:
        await remove_pod(cri, sandbox_id)
    await remove_all(server)
    assert snapshot().gained(before) == {}


@pytest.mark.every_engine
async def test_a_start_that_ended_with_the_server_can_be_made_again(
    server: Server, engine_api: DockerClient, snapshot: Callable[[], Snapshot]
) -> None:
    """Engines from version 28 on cancel a start whose client has gone. The container never ran, so it has not ended."""
    before = snapshot()
    async with CRI(server.target) as cri:
        await pull(cri)
        sandbox_id = await run_pod(cri, config := sandbox_config())
        cut_short = [await create(cri, sandbox_id, container_config(name=f"c{one}"), config) for one in range(16)]
        requests = [api.StartContainerRequest(container_id=one) for one in cut_short]
        starting = []
        for request in requests:
            starting.append(asyncio.ensure_future(cri.runtime.StartContainer(request)))
            # One after the other: so the server is killed at another point of each.
            await asyncio.sleep(0.02)
        server.kill()
        answers = await asyncio.gather(*starting, return_exceptions=True)
        assert any(isinstance(answer, grpc.aio.AioRpcError) for answer in answers)
    for container_id in cut_short:
        # The engine answers when it is done with the start.
        engine_api.api.inspect_container(container_id)
    server.start()
    async with CRI(server.target) as cri:
        found = {item.state for item in (await containers(cri)).values()}
        assert found <= {api.CONTAINER_RUNNING, api.CONTAINER_CREATED}
        for request in requests:
            await cri.runtime.StartContainer(request)
        assert {item.state for item in (await containers(cri)).values()} == {api.CONTAINER_RUNNING}
    await remove_all(server)
    assert snapshot().gained(before) == {}


@pytest.fixture
def slow_plugin(server: Server) -> Iterator[Path]:
    """A plugin in the middle of the chain whose ADD takes 1.5 s; yields the file that is there meanwhile."""
    conf = Path("/etc/cni/net.d/00-slow.conflist")
    plugin = Path("/opt/cni/bin/slow")
    begun = Path("/run/slow-plugin-begun")
    config = json.loads(Path("/etc/cni/net.d/10-test.conflist").read_text())
    config["plugins"].insert(1, {"type": "slow"})
    plugin.write_text(
        "#!/bin/sh\n"
        """[ $CNI_COMMAND != VERSION ] || exec echo '{"cniVersion": "0.4.0", "supportedVersions": ["0.4.0"]}'\n"""
        f'if [ "$CNI_COMMAND" = ADD ]; then touch {begun}; sleep 1.5; python3 -c \'import json, sys\n'
        f'print(json.dumps(json.load(sys.stdin)["prevResult"]))\'; rm {begun}; fi\n'
    )
    plugin.chmod(0o755)
    conf.write_text(json.dumps(config))
    networks.read_by(server)
    yield begun
    conf.unlink()
    plugin.unlink()
    begun.unlink(missing_ok=True)
    networks.read_by(server)


async def test_a_plugin_that_outlives_the_server_is_waited_for(
    server: Server, slow_plugin: Path, snapshot: Callable[[], Snapshot]
) -> None:
    before = snapshot()
    async with CRI(server.target) as cri:
        call = cri.runtime.RunPodSandbox(api.RunPodSandboxRequest(config=sandbox_config(port_mappings=PORT)))
        waiting = asyncio.ensure_future(dies(call))
        await until(slow_plugin.exists)
        server.kill()
        await waiting
    server.start()
    await remove_all(server)
    await until(lambda: not slow_plugin.exists())
    assert snapshot().gained(before) == {}


async def test_pods_that_the_engine_has_lost_are_listed_stopped_and_removed(
    server: Server, snapshot: Callable[[], Snapshot], engine_api: DockerClient
) -> None:
    before = snapshot()
    async with CRI(server.target) as cri:
        await pull(cri)
        ids = [await run_pod(cri, sandbox_config(port_mappings=PORT if number == 0 else [])) for number in range(3)]
        named = {sandbox_id: item.metadata for sandbox_id, item in (await sandboxes(cri)).items()}
        for sandbox_id in ids:
            await start(cri, sandbox_id)
    server.stop()
    for container in engine_api.containers.list(all=True):
        container.remove(force=True, v=True)
    server.start()
    async with CRI(server.target) as cri:
        listed = await sandboxes(cri)
        assert {one: item.metadata for one, item in listed.items()} == named
        assert {item.state for item in listed.values()} == {api.SANDBOX_NOTREADY}
        for sandbox_id in ids:
            status = await cri.runtime.PodSandboxStatus(api.PodSandboxStatusRequest(pod_sandbox_id=sandbox_id))
            assert status.status.state == api.SANDBOX_NOTREADY
            assert status.status.metadata == named[sandbox_id]
            for _ in range(2):
                await cri.runtime.StopPodSandbox(api.StopPodSandboxRequest(pod_sandbox_id=sandbox_id))
            for _ in range(2):
                await cri.runtime.RemovePodSandbox(api.RemovePodSandboxRequest(pod_sandbox_id=sandbox_id))
        assert not await sandboxes(cri)
    assert snapshot().gained(before) == {}


async def test_after_a_reboot_lost_pods_give_back_their_addresses(
    server: Server, snapshot: Callable[[], Snapshot], engine_api: DockerClient
) -> None:
    """/run is empty then: the DEL has no pinned namespace, only the data of the checkpoint and the CNI cache."""
    before = snapshot()
    rules = {tool: await spawn(f"{tool}-save") for tool in ("iptables", "ip6tables")}
    async with CRI(server.target) as cri:
        sandbox_id = await run_pod(cri, sandbox_config())
    server.stop()
    engine_api.containers.get(sandbox_id).remove(force=True)
    Pins(Path("/run/dockershim")).unpin(sandbox_id)
    shutil.rmtree("/run/dockershim")
    for tool, saved in rules.items():
        await spawn(f"{tool}-restore", saved)
    begun = server.log.stat().st_size
    server.start()
    await remove_all(server)
    assert snapshot().gained(before) == {}
    assert "to repeat it" not in server.log.read_text()[begun:], "no plugin's failure is the operator's to see to"


@pytest.mark.parametrize("delay", [0.05, 0.15, 0.3])
async def test_a_server_that_stops_first_undoes_what_a_caller_gave_up(
    server: Server, delay: float, snapshot: Callable[[], Snapshot]
) -> None:
    before = snapshot()
    async with CRI(server.target) as cri:
        call = cri.runtime.RunPodSandbox(api.RunPodSandboxRequest(config=sandbox_config()))
        await asyncio.sleep(delay)
        call.cancel()
        # The server hears of it before it is told to stop; it says so only when the call has ended.
        await asyncio.sleep(0.02)
    assert server.stop() == 0
    left = snapshot().gained(before)
    server.start()
    async with CRI(server.target) as cri:
        whole = await sandboxes(cri)
    # A call that ended before it was cancelled has made a whole pod. Otherwise there is nothing.
    assert all(item.state == api.SANDBOX_READY for item in whole.values())
    assert bool(left) == bool(whole)
    await remove_all(server)
    assert snapshot().gained(before) == {}
