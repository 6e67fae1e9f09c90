"""Half-made pods at the start of a server: it repairs its own, and touches nothing else."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from pathlib import Path

import grpc
import pytest
from docker import DockerClient

from dockershim.api.cri.v1 import api_pb2 as api
from dockershim.cri.accounts import READER_LABEL
from dockershim.network.netns import Pins
from tests.cri_client import CRI
from tests.engine import networks
from tests.engine.killed import crashing, dies, started
from tests.engine.pods import (
    BUSYBOX,
    cgroup_file,
    container_config,
    create,
    linux_container,
    pod,
    process,
    pull,
    refused,
    remove_pod,
    run_pod,
    sandbox_config,
    sandbox_status,
    sandboxes,
    status,
)
from tests.node.server import Server
from tests.node.state import Snapshot
from tests.waiting import until

CHECKPOINTS = Path("/var/lib/dockershim/sandbox")
CNI_CACHE = Path("/var/lib/cni/cache/results")
PINS = Pins(Path("/run/dockershim"))
STARTS = Path("/run/dockershim/starts")
CONFIGURATION = Path("/etc/cni/net.d/10-test.conflist")
NEVER_RAN = ["create the infra container", "write the checkpoint"]
WITHOUT_NETWORK = [
    "start the infra container",
    "inspect the infra container",
    "pin the network namespace",
    "write resolv.conf",
]
PORT = [api.PortMapping(container_port=80, host_port=18080)]


async def die(cri: CRI, config: api.PodSandboxConfig) -> None:
    await dies(cri.runtime.RunPodSandbox(api.RunPodSandboxRequest(config=config)))


@pytest.mark.parametrize("step", NEVER_RAN)
async def test_a_sandbox_that_was_never_started_is_removed(
    server: Server, step: str, snapshot: Callable[[], Snapshot]
) -> None:
    before = snapshot()
    async with crashing(server, step) as cri:
        await die(cri, sandbox_config())
    assert snapshot().gained(before) == {}
    async with CRI(server.target) as cri:
        assert not await sandboxes(cri)


@pytest.mark.parametrize("step", WITHOUT_NETWORK)
async def test_a_sandbox_whose_network_was_never_finished_is_stopped_and_stays_listed(
    server: Server, step: str, engine_api: DockerClient
) -> None:
    async with crashing(server, step) as cri:
        await die(cri, sandbox_config(port_mappings=PORT))
    async with CRI(server.target) as cri:
        (sandbox_id,) = await sandboxes(cri)
        assert not engine_api.api.inspect_container(sandbox_id)["State"]["Running"]
        assert not PINS.path(sandbox_id).exists()
        assert (await sandbox_status(cri, sandbox_id)).state == api.SANDBOX_NOTREADY
        await remove_pod(cri, sandbox_id)


async def test_a_whole_sandbox_that_its_maker_did_not_live_to_answer_with_is_made_again(
    server: Server, snapshot: Callable[[], Snapshot]
) -> None:
    before = snapshot()
    config = sandbox_config(port_mappings=PORT)
    async with crashing(server, "set up the network") as cri:
        await die(cri, config)
    async with CRI(server.target) as cri:
        (unanswered,) = await sandboxes(cri, state=api.PodSandboxStateValue(state=api.SANDBOX_READY))
        async with pod(cri, config) as sandbox_id:
            assert list(await sandboxes(cri)) == [sandbox_id] != [unanswered]
    assert snapshot().gained(before) == {}


async def test_metadata_of_a_ready_sandbox_with_containers_is_refused_after_a_restart_too(server: Server) -> None:
    config = sandbox_config()
    async with CRI(server.target) as cri:
        await pull(cri)
        sandbox_id = await run_pod(cri, config)
        await create(cri, sandbox_id, container_config(), config)
    await restarted(server)
    async with CRI(server.target) as cri:
        async with refused("ALREADY_EXISTS"):
            await run_pod(cri, config)
        await remove_pod(cri, sandbox_id)


async def test_the_network_of_a_sandbox_that_is_gone_is_given_back(
    server: Server, engine_api: DockerClient, snapshot: Callable[[], Snapshot]
) -> None:
    before = snapshot()
    async with CRI(server.target) as cri:
        sandbox_id = await run_pod(cri, sandbox_config(port_mappings=PORT))
    server.stop()
    engine_api.api.remove_container(sandbox_id, force=True)
    (CHECKPOINTS / sandbox_id).unlink()
    assert snapshot().gained(before)
    assert sandbox_id[:12] in await restarted(server)
    assert snapshot().gained(before) == {}


async def test_a_lost_sandbox_stays_listed_with_its_network(server: Server, engine_api: DockerClient) -> None:
    async with CRI(server.target) as cri:
        sandbox_id = await run_pod(cri, sandbox_config())
    server.stop()
    engine_api.api.remove_container(sandbox_id, force=True)
    assert sandbox_id[:12] in await restarted(server)
    async with CRI(server.target) as cri:
        assert (await sandboxes(cri))[sandbox_id].state == api.SANDBOX_NOTREADY
        assert list(CNI_CACHE.glob(f"*{sandbox_id}*"))
        await remove_pod(cri, sandbox_id)


async def test_pods_that_are_well_are_left_alone(server: Server, snapshot: Callable[[], Snapshot]) -> None:
    async with CRI(server.target) as cri:
        running, ended = await run_pod(cri, sandbox_config(port_mappings=PORT)), await run_pod(cri, sandbox_config())
        await cri.runtime.StopPodSandbox(api.StopPodSandboxRequest(pod_sandbox_id=ended))
    before = snapshot()
    server.kill()
    assert await restarted(server) == "found nothing to repair"
    assert snapshot() == before
    async with CRI(server.target) as cri:
        states = {one: item.state for one, item in (await sandboxes(cri)).items()}
        assert states == {running: api.SANDBOX_READY, ended: api.SANDBOX_NOTREADY}
        for sandbox_id in states:
            await remove_pod(cri, sandbox_id)


async def test_what_others_made_is_left_alone(server: Server, engine_api: DockerClient) -> None:
    """A container of no shim, a sandbox of another shim that was never started, an attachment of another runtime."""
    async with CRI(server.target) as cri:
        await pull(cri)
        ours = await run_pod(cri, sandbox_config())
        (cached,) = CNI_CACHE.glob(f"*{ours}*")
        entry = json.loads(cached.read_text())
        await remove_pod(cri, ours)
    labels = {"io.kubernetes.docker.type": "podsandbox"}
    nobodys = engine_api.api.create_container(BUSYBOX, network_disabled=True)["Id"]
    shims = engine_api.api.create_container(BUSYBOX, name="k8s_POD_web_default_uid-1_0", labels=labels)["Id"]
    other_id = "f" * 64
    foreign = CNI_CACHE / cached.name.replace(ours, other_id)
    foreign.write_text(json.dumps({**entry, "containerId": other_id, "netns": "/run/netns/of-another-runtime"}))
    try:
        assert await restarted(server) == "found nothing to repair"
        left = {one["Id"] for one in engine_api.api.containers(all=True)}
        assert {nobodys, shims} <= left
        assert foreign.exists()
    finally:
        foreign.unlink(missing_ok=True)
        for container_id in (nobodys, shims):
            engine_api.api.remove_container(container_id)


@pytest.fixture
def collector(server: Server) -> Iterator[Path]:
    """A plugin of version 1.1.0 after the bridge. Yields the file to which it writes the input of GC."""
    told, plugin = Path("/run/collector-was-told"), Path("/opt/cni/bin/collector")
    plugin.write_text(
        "#!/bin/sh\n"
        "case $CNI_COMMAND in\n"
        """VERSION) echo '{"cniVersion": "1.1.0", "supportedVersions": ["1.1.0"]}' ;;\n"""
        f"GC) cat >{told} ;;\n"
        """ADD) echo '{"cniVersion": "1.1.0", "ips": [{"address": "10.99.0.2/24"}]}' ;;\n"""
        "esac\n"
    )
    plugin.chmod(0o755)
    saved = CONFIGURATION.read_text()
    CONFIGURATION.write_text(json.dumps({"cniVersion": "1.1.0", "name": "gc", "plugins": [{"type": "collector"}]}))
    yield told
    CONFIGURATION.write_text(saved)
    networks.read_by(server)  # it would miss the plugin
    for path in (plugin, told):
        path.unlink(missing_ok=True)


async def test_plugins_that_can_collect_garbage_are_told_what_is_none(server: Server, collector: Path) -> None:
    await restarted(server)
    async with CRI(server.target) as cri, pod(cri) as sandbox_id:
        other_id = "e" * 64
        (cached,) = CNI_CACHE.glob(f"gc-{sandbox_id}-eth0")
        foreign = CNI_CACHE / cached.name.replace(sandbox_id, other_id)
        foreign.write_text(
            json.dumps({**json.loads(cached.read_text()), "containerId": other_id, "netns": "/run/netns/x"})
        )
        collector.unlink(missing_ok=True)
        await restarted(server)
        valid = json.loads(collector.read_text())["cni.dev/valid-attachments"]
        assert valid == [{"containerID": one, "ifname": "eth0"} for one in sorted((sandbox_id, other_id))]
        foreign.unlink()


async def restarted(server: Server) -> str:
    """Restart the server, and return the log text of its reconciliation."""
    server.stop()
    return await started(server)


@pytest.fixture(autouse=True)
async def empty_again(server: Server) -> AsyncIterator[None]:
    """Remove the pods of a test that fails, so that the next test does not get them."""
    yield
    if server.process is None or server.process.poll() is not None:
        server.kill()
        await restarted(server)
    async with CRI(server.target) as cri:
        for sandbox_id in await sandboxes(cri):
            with suppress(grpc.aio.AioRpcError):
                await remove_pod(cri, sandbox_id)


@pytest.mark.every_engine
async def test_limits_are_written_though_the_server_was_killed_right_after_the_start(
    server: Server, engine_api: DockerClient, snapshot: Callable[[], Snapshot]
) -> None:
    """If the kernel cannot limit huge pages, a container with such a limit must not go on."""
    before = snapshot()
    huge = [api.HugepageLimit(page_size="2MB", limit=2 << 20)]
    limited = api.LinuxContainerConfig(resources=api.LinuxContainerResources(hugepage_limits=huge))
    async with crashing(server, "start the container") as cri:
        await pull(cri)
        sandbox_id = await run_pod(cri, config := sandbox_config())
        container_id = await create(cri, sandbox_id, container_config(linux=limited), config)
        await dies(cri.runtime.StartContainer(api.StartContainerRequest(container_id=container_id)))
        assert engine_api.api.inspect_container(container_id)["State"]["Running"]
        assert [path.name for path in STARTS.iterdir()] == [container_id]
    async with CRI(server.target) as cri:
        await until(lambda: not list(STARTS.iterdir()))
        if ":hugetlb:" in Path("/proc/self/cgroup").read_text():
            assert cgroup_file(process(engine_api, container_id), "hugetlb.2MB.limit_in_bytes") == str(2 << 20)
        else:
            assert (await status(cri, container_id)).state == api.CONTAINER_EXITED
        await remove_pod(cri, sandbox_id)
    assert snapshot().gained(before) == {}


async def test_a_container_to_read_an_images_users_does_not_outlive_a_killed_server(
    server: Server, engine_api: DockerClient, snapshot: Callable[[], Snapshot]
) -> None:
    engine_api.images.pull(BUSYBOX)
    before = snapshot()
    one = api.Int64Value(value=1)
    config = container_config(linux=linux_container(run_as_user=one, run_as_group=one))
    bystander = engine_api.containers.create(BUSYBOX, labels={READER_LABEL: "/run/dockershim"})
    async with crashing(server, "create a container to read the image's users") as cri:
        sandbox_id = await run_pod(cri, sandbox_config())
        await dies(cri.runtime.CreateContainer(api.CreateContainerRequest(pod_sandbox_id=sandbox_id, config=config)))
        assert len(engine_api.api.containers(all=True)) == 3
    async with CRI(server.target) as cri:
        await until(lambda: len(engine_api.api.containers(all=True)) == 2)
        await remove_pod(cri, sandbox_id)
    bystander.remove()
    assert snapshot().gained(before) == {}
