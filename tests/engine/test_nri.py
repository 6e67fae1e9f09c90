"""NRI plugins in the life of real pods: what they are told, what they change, and what their failures cost."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest
from docker import DockerClient
from google.protobuf.message import Message

from dockershim.api.cri.v1 import api_pb2 as cri_api
from dockershim.api.nri.v1alpha1 import api_pb2 as api
from tests import nri, nri_plugin
from tests.cri_client import CRI
from tests.engine.hook_servers import Folder, example
from tests.engine.nri_plugins import Plugin, adjusting, joined, plugin
from tests.engine.pods import (
    BUSYBOX,
    container_config,
    containers,
    create,
    ended,
    pod,
    process,
    refused,
    remove,
    remove_pod,
    run_pod,
    sandbox_config,
    sandboxes,
    sh,
    start,
    status,
    stop,
)
from tests.node.mounts import MS_RDONLY, MS_REMOUNT, mount
from tests.node.server import Server, ServerError
from tests.node.state import Snapshot
from tests.waiting import until

TIMEOUT = 1.0  # seconds that a plugin has


@pytest.fixture(autouse=True, scope="module")
def image(engine_api: DockerClient) -> None:
    engine_api.images.pull(BUSYBOX)


@pytest.fixture(scope="module")
def socket() -> Path:
    return Path("/run/nri-test/nri.sock")


@pytest.fixture(scope="module", autouse=True)
def with_nri(server: Server, socket: Path) -> Iterator[None]:
    """The server with NRI, and a shorter time limit for plugins."""
    server.restart("--nri", f"--nri-socket={socket}", f"--nri-plugin-request-timeout={TIMEOUT:g}s")
    yield
    server.flags = ()
    server.restart()


async def test_the_events_of_a_pods_life_in_order(cri: CRI, socket: Path, snapshot: Callable[[], Snapshot]) -> None:
    before = snapshot()
    async with plugin(socket) as fake:
        config = sandbox_config(labels={"app": "web"})
        sandbox_id = await run_pod(cri, config)
        container_id = await start(cri, sandbox_id, container_config(name="main"), config)
        assert list(await containers(cri)) == [container_id]
        limits = cri_api.LinuxContainerResources(cpu_shares=200)
        await cri.runtime.UpdateContainerResources(
            cri_api.UpdateContainerResourcesRequest(container_id=container_id, linux=limits)
        )
        await cri.runtime.UpdatePodSandboxResources(
            cri_api.UpdatePodSandboxResourcesRequest(pod_sandbox_id=sandbox_id, resources=limits)
        )
        await stop(cri, container_id)
        await remove(cri, container_id)
        await remove_pod(cri, sandbox_id)
        await remove_pod(cri, sandbox_id)
        told = list(fake.told)
    assert [method for method, _ in told] == [
        "RunPodSandbox",
        "CreateContainer",
        "ValidateContainerAdjustment",
        "PostCreateContainer",
        "StartContainer",
        "PostStartContainer",
        "UpdateContainer",
        "PostUpdateContainer",
        "UpdatePodSandbox",
        "PostUpdatePodSandbox",
        "StopContainer",
        "RemoveContainer",
        "StopPodSandbox",
        "RemovePodSandbox",
    ]
    ids = {
        api.StartContainerRequest.FromString(request).container.id for method, request in told if "Container" in method
    }
    assert ids == {container_id}
    assert {api.StartContainerRequest.FromString(request).pod.id for _, request in told} == {sandbox_id}
    run = api.RunPodSandboxRequest.FromString(told[0][1]).pod
    assert (run.name, run.labels["app"], bool(run.ips)) == (config.metadata.name, "web", True)
    started = api.PostStartContainerRequest.FromString(told[5][1]).container
    assert started.pid
    assert started.state == api.CONTAINER_RUNNING
    assert container_id in started.linux.cgroups_path
    updated = api.UpdateContainerRequest.FromString(told[6][1])
    assert updated.linux_resources.cpu.shares.value == 200
    assert snapshot().gained(before) == {}


async def test_what_plugins_change_is_seen_inside(cri: CRI, socket: Path, engine_api: DockerClient) -> None:
    """Two plugins, of which the second one sees what the first one has set."""
    first = adjusting(
        annotations={"by": "first"},
        env=[api.KeyValue(key="FROM_NRI", value="first")],
        rlimits=[api.POSIXRlimit(type="RLIMIT_MEMLOCK", soft=32 << 10, hard=64 << 10)],
        mounts=[api.Mount(destination="/nri", type="bind", source="/etc", options=["rbind", "ro"])],
        linux=api.LinuxContainerAdjustment(
            oom_score_adj=api.OptionalInt(value=700),
            devices=[api.LinuxDevice(path="/dev/nri-null", type="c", major=1, minor=3)],
            resources=api.LinuxResources(
                cpu=api.LinuxCPU(shares=api.OptionalUInt64(value=333)),
                memory=api.LinuxMemory(limit=api.OptionalInt64(value=64 << 20)),
            ),
        ),
    )
    async with (
        plugin(socket, adjusting(annotations={"more": "second"}), "second", "20") as two,
        plugin(socket, first, "first", "10"),
        pod(cri) as sandbox_id,
    ):
        container_id = await start(cri, sandbox_id, container_config())
        asked = next(request for method, request in two.told if method == "CreateContainer")
        seen = api.CreateContainerRequest.FromString(asked).container
        assert seen.annotations["by"] == "first"
        assert "FROM_NRI=first" in seen.env
        script = (
            "echo $FROM_NRI; ulimit -l; ulimit -Hl; test -f /nri/passwd && touch /nri/x; echo x > /dev/nri-null; true"
        )
        assert (await sh(cri, container_id, script)).splitlines() == ["first", "32", "64"]
        shown = await status(cri, container_id)
        assert dict(shown.annotations) == {"by": "first", "more": "second"}
        limits = shown.resources.linux
        assert (limits.cpu_shares, limits.memory_limit_in_bytes) == (333, 64 << 20)
        running = process(engine_api, container_id)
        assert (running / "oom_score_adj").read_text().strip() == "700"


@pytest.mark.parametrize("method", ["RunPodSandbox", "CreateContainer", "StartContainer", "UpdateContainer"])
async def test_a_plugin_that_refuses_fails_the_call_and_leaves_nothing(
    method: str, cri: CRI, socket: Path, snapshot: Callable[[], Snapshot]
) -> None:
    before = snapshot()

    def refuse(_: bytes) -> Message:
        raise nri_plugin.Error(2, "not on my node")

    async with plugin(socket, Plugin(**{method: refuse})) as fake:
        config = sandbox_config()
        if method == "RunPodSandbox":
            async with refused("UNKNOWN", "NRI plugin 10-test: RunPodSandbox: not on my node"):
                await run_pod(cri, config)
            assert await sandboxes(cri) == {}
            assert fake.methods == ["RunPodSandbox", "StopPodSandbox", "RemovePodSandbox"]
        else:
            async with pod(cri, config) as sandbox_id:
                with_limits = container_config()
                if method == "CreateContainer":
                    async with refused("UNKNOWN", "not on my node"):
                        await create(cri, sandbox_id, with_limits, config)
                    assert await containers(cri) == {}
                    assert fake.methods[1:] == ["CreateContainer", "StopContainer", "RemoveContainer"]
                elif method == "StartContainer":
                    async with refused("UNKNOWN", "not on my node"):
                        await start(cri, sandbox_id, with_limits, config)
                else:
                    container_id = await start(cri, sandbox_id, with_limits, config)
                    limits = cri_api.LinuxContainerResources(cpu_shares=200)
                    request = cri_api.UpdateContainerResourcesRequest(container_id=container_id, linux=limits)
                    async with refused("UNKNOWN", "not on my node"):
                        await cri.runtime.UpdateContainerResources(request)
                    assert (await status(cri, container_id)).resources.linux.cpu_shares != 200
        fake.answer = Plugin()
        async with pod(cri, config) as sandbox_id:
            await start(cri, sandbox_id, container_config(), config)
    assert snapshot().gained(before) == {}


async def test_hook_servers_and_plugins_see_what_the_other_changes(
    cri: CRI, socket: Path, server: Server, tmp_path: Path
) -> None:
    """Hook servers come first; what plugins change is in what the later hooks are told."""
    folder = Folder(server)
    hooks = ("PreCreateContainer", "PostStartContainer")
    async with example(tmp_path, "--env=GREETING=from the hook", "--annotation=hook=1") as hook_server:
        await folder.write("example.json", tmp_path / "example.sock", "Fail", hooks)
        try:
            async with plugin(socket, adjusting(annotations={"nri": "1"})) as fake, pod(cri) as sandbox_id:
                container_id = await start(cri, sandbox_id, container_config())
                asked = next(request for method, request in fake.told if method == "CreateContainer")
                seen = api.CreateContainerRequest.FromString(asked).container
                assert seen.annotations["hook"] == "1"
                assert "GREETING=from the hook" in seen.env
                assert dict((await status(cri, container_id)).annotations) == {"hook": "1", "nri": "1"}
            told = [request for hook, request in hook_server.calls() if hook == "PostStartContainer"]
            assert told[0]["container_annotations"] == {"hook": "1", "nri": "1"}
        finally:
            await folder.clear()


async def test_conflicting_plugins_are_both_named(cri: CRI, socket: Path) -> None:
    change = adjusting(env=[api.KeyValue(key="A", value="1")])
    async with (
        plugin(socket, change, "first", "10"),
        plugin(socket, change, "second", "20"),
        pod(cri) as sandbox_id,
    ):
        async with refused("UNKNOWN", "10-first", "20-second", "Env A"):
            await create(cri, sandbox_id, container_config())
        assert await containers(cri) == {}


async def test_what_an_engine_cannot_do_is_refused_with_plugin_and_field(cri: CRI, socket: Path) -> None:
    hooks = api.Hooks(prestart=[api.Hook(path="/bin/true")])
    async with plugin(socket, adjusting(hooks=hooks)) as fake, pod(cri) as sandbox_id:
        async with refused("INVALID_ARGUMENT", "10-test", "hooks.prestart"):
            await create(cri, sandbox_id, container_config())
        assert await containers(cri) == {}
        assert fake.methods[-2:] == ["StopContainer", "RemoveContainer"]


async def test_a_validator_decides(cri: CRI, socket: Path) -> None:
    reject = Plugin(
        ValidateContainerAdjustment=lambda request: api.ValidateContainerAdjustmentResponse(
            reject=bool(api.ValidateContainerAdjustmentRequest.FromString(request).adjust.env), reason="no variables"
        )
    )
    async with (
        plugin(socket, adjusting(env=[api.KeyValue(key="A", value="1")]), "changes", "10") as one,
        plugin(socket, reject, "decides", "90"),
        pod(cri) as sandbox_id,
    ):
        async with refused("UNKNOWN", "'90-decides' rejected container adjustment, reason: no variables"):
            await create(cri, sandbox_id, container_config())
        one.answer = Plugin()
        await create(cri, sandbox_id, container_config())


async def test_the_validator_of_the_operator(start_server: Callable[..., Server]) -> None:
    path = Path("/run/nri-validator.sock")
    started = start_server(
        "--nri",
        f"--nri-socket={path}",
        "--nri-default-validator",
        "--nri-reject=sysctl,namespace",
        "--nri-required-plugins=must",
        "--nri-tolerate-missing-plugins-annotation=may-miss",
    )
    change = adjusting(linux=api.LinuxContainerAdjustment(sysctl={"net.ipv4.ip_forward": "1"}))
    async with CRI(started.target) as own, pod(own) as sandbox_id:
        async with refused("UNKNOWN", "must"):
            await create(own, sandbox_id, container_config())
        async with pod(own, sandbox_config(annotations={"may-miss": "true"})) as tolerant:
            await create(own, tolerant, container_config())
        async with plugin(path, adjusting(annotations={"a": "b"}), "must"):
            await create(own, sandbox_id, container_config(name="allowed"))
            async with plugin(path, change, "changes", "20"), refused("UNKNOWN", "20-changes", "sysctl"):
                await create(own, sandbox_id, container_config(name="rejected"))


async def test_a_container_that_ends_by_itself(cri: CRI, socket: Path) -> None:
    async with plugin(socket) as fake, pod(cri) as sandbox_id:
        container_id = await start(cri, sandbox_id, container_config("exit 1"))
        assert (await ended(cri, container_id)).exit_code == 1
        async with asyncio.timeout(10):
            await fake.until(lambda: "StopContainer" in fake.methods)
        stopped = api.StopContainerRequest.FromString(fake.told[fake.methods.index("StopContainer")][1]).container
        assert (stopped.state, stopped.exit_code) == (api.CONTAINER_STOPPED, 1)
        await stop(cri, container_id)
        await remove(cri, container_id)
        assert fake.methods.count("StopContainer") == 1
        assert fake.methods[-1] == "RemoveContainer"


async def test_a_container_that_somebody_else_removes(cri: CRI, socket: Path, engine_api: DockerClient) -> None:
    async with plugin(socket) as fake, pod(cri) as sandbox_id:
        container_id = await start(cri, sandbox_id, container_config())
        engine_api.api.remove_container(container_id, force=True)
        async with asyncio.timeout(10):
            await fake.until(lambda: "RemoveContainer" in fake.methods)
        assert fake.methods.count("StopContainer") == 1


async def test_a_slow_plugin_costs_its_time_once(cri: CRI, socket: Path, server: Server) -> None:
    waiting = asyncio.Event()

    async def stall(method: str, request: bytes) -> Message:
        if method == "RunPodSandbox":
            await waiting.wait()
        return await nri_plugin.accept(method, request)

    async with plugin(socket, stall, "slow", "10") as fake, plugin(socket, name="good", index="20") as other:
        begin = time.monotonic()
        first = await run_pod(cri, sandbox_config())
        assert time.monotonic() - begin >= TIMEOUT
        await fake.closed()
        second = await run_pod(cri, sandbox_config())
        await remove_pod(cri, first)
        await remove_pod(cri, second)
        assert other.methods.count("RunPodSandbox") == 2
        assert fake.methods == ["RunPodSandbox"]
        nri = json.loads((await cri.runtime.Status(cri_api.StatusRequest(verbose=True))).info["nri"])
        assert nri["connected"] == ["20-good"]
        gone = {one["name"]: one["reason"] for one in nri["gone"]}
        assert gone["10-slow"] == "no answer to RunPodSandbox within 1 s"
    lines = [line for line in server.log.read_text().splitlines() if "10-slow" in line and "disconnected" in line]
    assert len(lines) == 1
    assert "no answer to RunPodSandbox within 1 s" in lines[0]


async def test_one_that_hangs_and_comes_again_does_not_slow_pods_for_long(cri: CRI, socket: Path) -> None:
    async def seconds() -> float:
        begin = time.monotonic()
        async with pod(cri) as sandbox_id:
            await start(cri, sandbox_id, container_config())
        return time.monotonic() - begin

    usual = await seconds()
    told = []

    async def hang(method: str, request: bytes) -> Message:
        if method == "Synchronize":
            told.append(method)
            await asyncio.Event().wait()
        return await nri_plugin.accept(method, request)

    async def come_again() -> None:
        while True:
            async with nri_plugin.connected(socket, hang) as fake:
                await fake.register("hangs")
                await fake.closed()

    coming = asyncio.create_task(come_again())
    try:
        await until(lambda: len(told) == 2)
        # One limit for the second time; with every time it would be four of them.
        assert await seconds() < usual + 3 * TIMEOUT
        assert len(told) == 2
    finally:
        coming.cancel()
        await asyncio.wait([coming])


async def test_connections_that_say_nothing_keep_no_plugin_waiting(cri: CRI, socket: Path) -> None:
    async with nri_plugin.connected(socket), nri_plugin.connected(socket):
        async with asyncio.timeout(1), plugin(socket) as fake:
            pass
        assert fake.methods == []


async def test_nothing_is_lost_on_one_that_comes_late(cri: CRI, socket: Path) -> None:
    """Pods and containers are made all the while: each is in what it is told first, or comes as an event later."""
    release = asyncio.Event()

    async def slow(method: str, request: bytes) -> Message:
        if method == "Synchronize":
            await release.wait()
        return await nri_plugin.accept(method, request)

    config = sandbox_config()
    async with pod(cri, config) as sandbox_id:
        numbers = iter(range(100))

        async def make() -> None:
            await create(cri, sandbox_id, container_config(name=f"c{next(numbers)}"), config)

        await make()
        async with nri_plugin.connected(socket, slow) as fake:
            making = [asyncio.create_task(make()) for _ in range(3)]
            registering = asyncio.create_task(joined(fake))
            making += [asyncio.create_task(make()) for _ in range(3)]
            # The load: containers are made while it is slow.
            await asyncio.sleep(TIMEOUT / 2)
            release.set()
            told = await registering
            await asyncio.gather(*making)
            await make()
            assert [one.id for one in told.pods] == [sandbox_id]
            first = {one.name for one in told.containers}
            later = {
                api.PostCreateContainerRequest.FromString(request).container.name
                for method, request in fake.told
                if method in ("CreateContainer", "PostCreateContainer")
            }
            assert first | later == {f"c{number}" for number in range(8)}
            assert "c0" in first
            assert "c7" in later


async def test_a_restart_of_the_server_tells_plugins_everything_again(cri: CRI, socket: Path, server: Server) -> None:
    config = sandbox_config()
    async with plugin(socket) as fake:
        sandbox_id = await run_pod(cri, config)
        container_id = await start(cri, sandbox_id, container_config(name="lasts"), config)
        known = api.PostStartContainerRequest.FromString(fake.told[-1][1]).container
        server.restart()
        await fake.closed()
    async with CRI(server.target) as again, nri_plugin.connected(socket) as fake:
        told = await joined(fake)
        assert [one.id for one in told.pods] == [sandbox_id]
        assert [(one.id, one.name, one.pid) for one in told.containers] == [(known.id, "lasts", known.pid)]
        assert (await status(again, container_id)).state == cri_api.CONTAINER_RUNNING
        await remove_pod(again, sandbox_id)
        assert fake.methods == ["StopContainer", "StopPodSandbox", "RemoveContainer", "RemovePodSandbox"]


async def test_a_server_that_is_killed_while_it_asks_leaves_no_container(
    cri: CRI, socket: Path, server: Server, engine_api: DockerClient
) -> None:
    waiting = asyncio.Event()

    async def stall(method: str, request: bytes) -> Message:
        if method == "CreateContainer":
            await waiting.wait()
        return await nri_plugin.accept(method, request)

    def made() -> set[str]:
        found = engine_api.api.containers(all=True)
        return {name for one in found for name in one["Names"] if "dockershim-draft" in name or "k8s_main" in name}

    async with plugin(socket, stall) as fake:
        sandbox_id = await run_pod(cri, sandbox_config())
        creating = asyncio.create_task(create(cri, sandbox_id, container_config()))
        await fake.until(lambda: "CreateContainer" in fake.methods)
        assert len(made()) == 1
        assert await containers(cri) == {}
        server.kill()
        with pytest.raises(grpc.aio.AioRpcError):
            await creating
    server.start()
    async with CRI(server.target) as again:
        await until(lambda: not made())
        await remove_pod(again, sandbox_id)


async def test_what_the_engine_could_not_remove_is_removed_later(
    cri: CRI, socket: Path, engine_api: DockerClient
) -> None:
    """The engine's disk is read-only while plugins are asked, as after an I/O error."""
    place = Path(engine_api.info()["DockerRootDir"]) / "containers"

    async def answer(method: str, request: bytes) -> Message:
        if method == "CreateContainer":
            mount("tmpfs", place, "tmpfs", MS_REMOUNT | MS_RDONLY)
        return await nri_plugin.accept(method, request)

    def drafts() -> list[str]:
        names = (str(one.name) for one in engine_api.containers.list(all=True, ignore_removed=True))
        return [name for name in names if name.startswith("dockershim-draft-")]

    mount("tmpfs", place, "tmpfs")
    try:
        async with pod(cri) as sandbox_id:
            async with plugin(socket, answer):
                async with refused("INTERNAL", "read-only file system"):
                    await create(cri, sandbox_id, container_config())
                assert len(drafts()) == 1
            mount("tmpfs", place, "tmpfs", MS_REMOUNT)
            await until(lambda: drafts() == [])
    finally:
        subprocess.run(["umount", "-l", place], check=True)


async def test_a_plugin_updates_and_evicts_containers_at_any_time(
    server: Server, cri: CRI, socket: Path, engine_api: DockerClient
) -> None:
    async with plugin(socket) as fake, pod(cri) as sandbox_id:
        container_id = await start(cri, sandbox_id, container_config())
        known = api.PostStartContainerRequest.FromString(fake.told[-1][1]).container.id

        def update(container: str, shares: int, ignore: bool = False) -> api.ContainerUpdate:
            resources = api.LinuxResources(cpu=api.LinuxCPU(shares=api.OptionalUInt64(value=shares)))
            linux = api.LinuxContainerUpdate(resources=resources)
            return api.ContainerUpdate(container_id=container, linux=linux, ignore_failure=ignore)

        request = api.UpdateContainersRequest(update=[update(known, 444), update("a" * 64, 1), update("b", 1, True)])
        answer = api.UpdateContainersResponse.FromString(await fake.call("UpdateContainers", request))
        assert [one.container_id for one in answer.failed] == ["a" * 64]
        assert engine_api.api.inspect_container(container_id)["HostConfig"]["CpuShares"] == 444
        # What a plugin asks for again and again is begun once, and said in a line for each request at most.
        evictions = [api.ContainerEviction(container_id=one, reason="too loud") for one in (known, "c", "d", "e")]
        evict = api.UpdateContainersRequest(evict=evictions)
        await asyncio.gather(*(fake.call("UpdateContainers", evict) for _ in range(5)))
        assert (await ended(cri, container_id)).exit_code == 143
        log = server.log.read_text()
        assert log.count(f"container {container_id} is evicted: \"plugin '10-test': too loud\"") == 1
        assert log.count("container 'c' to be evicted does not exist, nor do 2 more") == 5


async def test_an_answer_updates_other_containers(cri: CRI, socket: Path, engine_api: DockerClient) -> None:
    known: list[str] = []

    def share(_: bytes) -> Message:
        resources = api.LinuxResources(cpu=api.LinuxCPU(shares=api.OptionalUInt64(value=99)))
        linux = api.LinuxContainerUpdate(resources=resources)
        return api.CreateContainerResponse(update=[api.ContainerUpdate(container_id=one, linux=linux) for one in known])

    async with plugin(socket, Plugin(CreateContainer=share)) as fake, pod(cri) as sandbox_id:
        first = await start(cri, sandbox_id, container_config(name="first"))
        known.append(api.PostStartContainerRequest.FromString(fake.told[-1][1]).container.id)
        await create(cri, sandbox_id, container_config(name="second"))
        assert engine_api.api.inspect_container(first)["HostConfig"]["CpuShares"] == 99


async def test_a_plugin_changes_an_update(cri: CRI, socket: Path, engine_api: DockerClient) -> None:
    def change(request: bytes) -> Message:
        asked = api.UpdateContainerRequest.FromString(request)
        resources = api.LinuxResources(cpu=api.LinuxCPU(quota=api.OptionalInt64(value=40_000)))
        linux = api.LinuxContainerUpdate(resources=resources)
        return api.UpdateContainerResponse(update=[api.ContainerUpdate(container_id=asked.container.id, linux=linux)])

    async with plugin(socket, Plugin(UpdateContainer=change)), pod(cri) as sandbox_id:
        container_id = await start(cri, sandbox_id, container_config())
        limits = cri_api.LinuxContainerResources(cpu_shares=200)
        request = cri_api.UpdateContainerResourcesRequest(container_id=container_id, linux=limits)
        await cri.runtime.UpdateContainerResources(request)
        host_config = engine_api.api.inspect_container(container_id)["HostConfig"]
        assert (host_config["CpuShares"], host_config["CpuQuota"]) == (200, 40_000)


async def test_floods_and_rubbish_stay_bounded(cri: CRI, socket: Path, server: Server) -> None:
    """Plugins that are registered and then write without end cost little memory, and pods go on."""

    def resident() -> int:
        fields = Path(f"/proc/{server.pid}/status").read_text()
        return int(fields.partition("VmRSS:")[2].split()[0]) // 1024

    async def flood(data: bytes) -> None:
        async with nri_plugin.connected(socket) as fake:
            await joined(fake)
            with_end = time.monotonic() + 3
            try:
                while time.monotonic() < with_end:
                    fake.writer.write(data)
                    await fake.writer.drain()
            except ConnectionError:
                return

    async with pod(cri) as sandbox_id:
        before = resident()
        unasked = nri_plugin.frame(nri_plugin.PLUGIN, nri_plugin.RESPONSE, 77, bytes(1 << 20))
        elsewhere = nri_plugin.frame(9, nri_plugin.REQUEST, 1, bytes(1 << 20))
        halves = nri_plugin.frame(nri_plugin.RUNTIME, nri_plugin.REQUEST, 999, bytes(4 << 20))[:-1]
        for number, data in enumerate((unasked, elsewhere, halves, b"\xff" * 1000)):
            flooding = asyncio.create_task(flood(data))
            container_id = await start(cri, sandbox_id, container_config(name=f"beside-{number}"))
            assert await sh(cri, container_id, "echo works") == "works"
            await flooding
        assert resident() - before < 60  # MiB


async def test_installed_plugins_are_started_and_ended_with_the_server(
    start_server: Callable[..., Server], tmp_path: Path
) -> None:
    """A script shows what it is started with; it never registers, so the server goes on without it."""
    folder = tmp_path / "plugins"
    folder.mkdir()
    script = folder / "05-shows"
    lines = ("#!/bin/sh", "export -p > {0}", "ls -l /proc/self/fd/$NRI_PLUGIN_SOCKET >> {0}", "exec sleep 1000", "")
    script.write_text("\n".join(lines).format(tmp_path / "seen"))
    script.chmod(0o755)
    (folder / "readme").write_text("no plugin")
    started = start_server(
        "--nri",
        "--nri-disable-connections",
        f"--nri-plugin-dir={folder}",
        "--nri-plugin-registration-timeout=500ms",
    )
    seen = (tmp_path / "seen").read_text()
    assert "NRI_PLUGIN_NAME='shows'" in seen
    assert "NRI_PLUGIN_IDX='05'" in seen
    assert "socket:" in seen
    assert "NRI plugin 05-shows was rejected: it did not register within 0.5 s" in started.log.read_text()
    async with CRI(started.target) as own, pod(own):
        pass


async def test_a_socket_that_another_runtime_serves_is_left_to_it(server: Server, socket: Path) -> None:
    with pytest.raises(ServerError, match="another runtime serves NRI there"):
        Server(name="dockershim-nri", flags=("--nri", f"--nri-socket={socket}")).start()


# A plugin in Go, with the library that real ones are made with.


def events(file: Path, container_id: str = "") -> list[str]:
    """What the plugin in Go has written down, or what of it is of one container."""
    lines = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    return [line["event"] for line in lines if not container_id or container_id in line["containers"]]


ADJUSTMENT = {
    "env": [{"key": "FROM_GO", "value": "x" * 20_000}],
    # None of open files: a program in Go, as runc is, raises the soft one for itself, and may be late to take it back.
    "rlimits": [{"type": "RLIMIT_MEMLOCK", "soft": str(32 << 10), "hard": str(64 << 10)}],
    "linux": {"devices": [{"path": "/dev/go-null", "type": "c", "major": "1", "minor": "3"}]},
}


async def lead_a_life(own: CRI, file: Path) -> None:
    """A pod with an adjustment that does not fit into one read of a Go program, and one without."""
    config = sandbox_config(annotations={"adjust.nri.test": json.dumps(ADJUSTMENT)})
    async with pod(own, config) as sandbox_id:
        container_id = await start(own, sandbox_id, container_config(), config)
        script = "echo ${#FROM_GO}; ulimit -l; echo x > /dev/go-null && echo written"
        assert (await sh(own, container_id, script)).splitlines() == ["20000", "32", "written"]
    async with pod(own) as sandbox_id:
        container_id = await start(own, sandbox_id, container_config())
        await stop(own, container_id)
        await remove(own, container_id)
    container_events = ("CreateContainer", "PostCreateContainer", "StartContainer", "PostStartContainer")
    assert events(file, container_id) == [*container_events, "StopContainer", "RemoveContainer"]
    assert events(file)[-2:] == ["StopPodSandbox", "RemovePodSandbox"]


async def test_a_plugin_in_go_that_connects(cri: CRI, socket: Path, tmp_path: Path) -> None:
    """It is told of so many containers that the message has to be cut for the reader in Go."""
    config = sandbox_config()
    file = tmp_path / "told"
    async with pod(cri, config) as sandbox_id:
        for number in range(12):
            await create(cri, sandbox_id, container_config(name=f"c{number}"), config)
        flags = ("-name=go", "-index=20", f"-socket={socket}", f"-file={file}")
        process = await asyncio.create_subprocess_exec(nri.NAME, *flags)
        try:
            await until(lambda: events(file) == ["Configure", "Synchronize"])
            told = json.loads(file.read_text().splitlines()[1])
            assert (told["pods"], sorted(told["containers"])) == ([sandbox_id], sorted(await containers(cri)))
            await lead_a_life(cri, file)
        finally:
            process.kill()
            await process.wait()


async def test_a_plugin_in_go_that_is_installed(start_server: Callable[..., Server], tmp_path: Path) -> None:
    folders = {name: tmp_path / name for name in ("plugins", "configs")}
    for folder in folders.values():
        folder.mkdir()
    (folders["plugins"] / "20-go").symlink_to(str(shutil.which(nri.NAME)))
    (folders["configs"] / "go.conf").write_text(str(tmp_path / "told"))
    started = start_server(
        "--nri",
        "--nri-disable-connections",
        f"--nri-plugin-dir={folders['plugins']}",
        f"--nri-plugin-config-dir={folders['configs']}",
    )
    assert events(tmp_path / "told") == ["Configure", "Synchronize"]
    async with CRI(started.target) as own:
        await lead_a_life(own, tmp_path / "told")
    assert started.stop() == 0
    assert not [one for one in Path("/proc").glob("[0-9]*/comm") if "20-go" in _read(one)]


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:  # the process has ended
        return ""
