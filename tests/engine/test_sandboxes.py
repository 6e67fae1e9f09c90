"""RunPodSandbox, StopPodSandbox, RemovePodSandbox, PodSandboxStatus, ListPodSandbox as api.proto describes them."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import pytest
from docker import DockerClient

from dockershim.api.cri.v1 import api_pb2 as api
from tests.cri_client import CRI
from tests.engine.pods import (
    BUSYBOX,
    arrived,
    container,
    container_config,
    containers,
    create,
    linux_container,
    linux_sandbox,
    pod,
    process,
    process_status,
    refused,
    remove_pod,
    run_pod,
    sandbox_config,
    sandbox_status,
    sandboxes,
    sh,
    start,
    status,
)
from tests.node.engine import Engine
from tests.node.server import Server
from tests.node.state import Snapshot
from tests.waiting import answer, eventually, until

ENGINE = os.environ.get("TEST_NODE_ENGINE")
#: Stops during a start, each a little later than the one before.
TRIES = 10


@pytest.fixture(autouse=True, scope="module")
def image(engine_api: DockerClient) -> None:
    engine_api.images.pull(BUSYBOX)


def namespace(process: Path, kind: str) -> str:
    return os.readlink(process / "ns" / kind)  # noqa: PTH115 - a name such as net:[4026531840], no path


def in_pod(**options: Any) -> api.PodSandboxConfig:
    return sandbox_config(linux=linux_sandbox(namespace_options=api.NamespaceOption(**options)))


def in_container(command: str = "exec sleep 1000", **options: Any) -> api.ContainerConfig:
    return container_config(command, linux=linux_container(namespace_options=api.NamespaceOption(**options)))


# Namespaces


@pytest.mark.every_engine
async def test_containers_share_namespaces_of_their_pod_and_not_the_nodes(cri: CRI, engine_api: DockerClient) -> None:
    async with pod(cri) as sandbox_id:
        first = await start(cri, sandbox_id, container_config(name="first"))
        second = await start(cri, sandbox_id, container_config(name="second"))
        for kind in ("net", "ipc", "uts"):
            pods = namespace(process(engine_api, sandbox_id), kind)
            assert pods != namespace(Path("/proc/self"), kind)
            if kind != "uts":
                assert namespace(process(engine_api, first), kind) == pods
                assert namespace(process(engine_api, second), kind) == pods


@pytest.mark.every_engine
@pytest.mark.parametrize(
    ("option", "kind"),
    [
        pytest.param("network", "net", id="network"),
        pytest.param("network", "uts", id="a pod on the node's network has the node's hostname"),
        pytest.param("ipc", "ipc", id="IPC"),
        pytest.param("pid", "pid", id="PID"),
    ],
)
async def test_mode_node_is_the_nodes_namespace(cri: CRI, engine_api: DockerClient, option: str, kind: str) -> None:
    mode: dict[str, Any] = {option: api.NODE}
    config = in_pod(**mode)
    async with pod(cri, config) as sandbox_id:
        container_id = await start(cri, sandbox_id, in_container(**mode), config)
        for one in (sandbox_id, container_id):
            assert namespace(process(engine_api, one), kind) == namespace(Path("/proc/self"), kind)
        options = (await sandbox_status(cri, sandbox_id)).linux.namespaces.options
        assert getattr(options, option) == api.NODE


async def test_pod_on_the_nodes_network_has_no_address_of_its_own(cri: CRI) -> None:
    async with pod(cri, in_pod(network=api.NODE)) as sandbox_id:
        found = await sandbox_status(cri, sandbox_id)
    assert found.state == api.SANDBOX_READY
    assert (found.network.ip, list(found.network.additional_ips)) == ("", [])


@pytest.mark.every_engine
async def test_pid_mode_pod_shows_the_infra_container_as_the_first_process(cri: CRI) -> None:
    async with container(cri, in_container(pid=api.POD)) as container_id:
        assert await sh(cri, container_id, "cat /proc/1/comm") == "pause"


@pytest.mark.every_engine
async def test_pid_mode_container_shows_only_the_containers_processes(cri: CRI) -> None:
    async with container(cri, in_container(pid=api.CONTAINER)) as container_id:
        assert await sh(cri, container_id, "cat /proc/1/comm") == "sleep"


@pytest.mark.every_engine
async def test_pid_mode_target_is_the_namespace_of_another_container(cri: CRI, engine_api: DockerClient) -> None:
    async with pod(cri) as sandbox_id:
        target = await start(
            cri, sandbox_id, container_config(name="target", linux=in_container(pid=api.CONTAINER).linux)
        )
        config = in_container(pid=api.TARGET, target_id=target)
        debugger = await start(cri, sandbox_id, config)
        assert namespace(process(engine_api, debugger), "pid") == namespace(process(engine_api, target), "pid")


async def test_pid_mode_target_needs_a_container_of_this_sandbox(cri: CRI) -> None:
    async with container(cri) as stranger, pod(cri) as sandbox_id, refused("INVALID_ARGUMENT", "target_id"):
        await start(cri, sandbox_id, in_container(pid=api.TARGET, target_id=stranger))


async def test_the_infra_container_reaps_zombies(cri: CRI) -> None:
    """A process that outlives its parent becomes a child of the pod's first process, which has to reap it."""
    orphan = "(sh -c 'sleep 0.2 & echo $! >/tmp/orphan' ); exec sleep 1000"
    async with container(cri, in_container(orphan, pid=api.POD)) as container_id:
        number = await answer(lambda: sh(cri, container_id, "cat /tmp/orphan || true"), bool)
        await eventually(lambda: sh(cri, container_id, f"ls -d /proc/{number} 2>/dev/null || echo gone"), "gone")


# The view of the pod's containers


@pytest.mark.every_engine
async def test_hostname_is_the_one_asked_for(cri: CRI) -> None:
    async with container(cri, sandbox=sandbox_config(hostname="web-0")) as container_id:
        assert await sh(cri, container_id, "hostname") == "web-0"


@pytest.mark.every_engine
async def test_hostname_on_the_nodes_network_is_the_nodes(cri: CRI) -> None:
    sandbox = in_pod(network=api.NODE)
    sandbox.hostname = os.uname().nodename
    async with container(cri, in_container(network=api.NODE), sandbox) as container_id:
        assert await sh(cri, container_id, "hostname") == os.uname().nodename


@pytest.mark.parametrize(
    ("dns", "expected"),
    [
        pytest.param(
            api.DNSConfig(
                servers=["10.96.0.10", "fd00::10"],
                searches=["tests.svc.cluster.local", "svc.cluster.local"],
                options=["ndots:5", "edns0"],
            ),
            "nameserver 10.96.0.10\nnameserver fd00::10\n"
            "search tests.svc.cluster.local svc.cluster.local\noptions ndots:5 edns0\n",
            id="all of it",
            marks=pytest.mark.every_engine,
        ),
        pytest.param(
            api.DNSConfig(servers=["127.0.0.53"]),
            "nameserver 127.0.0.53\n",
            id="a server on the loopback",
            marks=pytest.mark.every_engine,
        ),
        pytest.param(
            api.DNSConfig(servers=[f"10.0.0.{n}" for n in range(9)]),
            "".join(f"nameserver 10.0.0.{n}\n" for n in range(9)),
            id="more servers than a resolver reads",
        ),
        pytest.param(api.DNSConfig(searches=["."]), "search .\n", id="a search domain alone"),
    ],
)
@pytest.mark.parametrize("network", [pytest.param(api.POD, id="pod"), pytest.param(api.NODE, id="node")])
async def test_resolv_conf_is_exactly_what_was_asked_for(
    cri: CRI, dns: api.DNSConfig, expected: str, network: int
) -> None:
    sandbox = in_pod(network=network)
    sandbox.dns_config.CopyFrom(dns)
    async with container(cri, in_container(network=network), sandbox) as container_id:
        assert await sh(cri, container_id, "cat /etc/resolv.conf") == expected.rstrip("\n")


@pytest.mark.every_engine
async def test_sysctls_are_set(cri: CRI) -> None:
    sandbox = sandbox_config(
        linux=api.LinuxPodSandboxConfig(
            sysctls={
                "net.ipv4.ip_unprivileged_port_start": "80",
                "kernel/shm_rmid_forced": "1",
                "net.ipv4.ip_local_port_range": "2048\t61000",
                "kernel.domainname": "tests.example",
            }
        )
    )
    async with container(cri, sandbox=sandbox) as container_id:
        assert await sh(cri, container_id, "cat /proc/sys/net/ipv4/ip_unprivileged_port_start") == "80"
        assert await sh(cri, container_id, "cat /proc/sys/kernel/shm_rmid_forced") == "1"
        assert await sh(cri, container_id, "cat /proc/sys/net/ipv4/ip_local_port_range") == "2048\t61000"
        assert await sh(cri, container_id, "cat /proc/sys/kernel/domainname") == "tests.example"


async def test_a_cgroup_driver_that_is_not_the_engines_is_told(
    start_server: Callable[..., Server], engine_api: DockerClient, snapshot: Callable[[], Snapshot]
) -> None:
    """Kubelets that call RuntimeConfig exit with the message; crictl shows it; pods with the engine's driver go on."""
    assert engine_api.info()["CgroupDriver"] == "cgroupfs"
    before = snapshot()
    async with CRI(start_server("--cgroup-driver=systemd").target) as cri:
        async with refused("FAILED_PRECONDITION", "native.cgroupdriver=systemd"):
            await cri.runtime.RuntimeConfig(api.RuntimeConfigRequest())
        shown = (await cri.runtime.Status(api.StatusRequest())).status
        conditions = {one.type: (one.status, one.reason) for one in shown.conditions}
        assert conditions["RuntimeReady"] == (True, "")
        assert conditions["CgroupDriverMatches"] == (False, "CgroupDriverMismatch")
        slice_of_systemd = api.LinuxPodSandboxConfig(cgroup_parent="/kubepods.slice/kubepods-pod1.slice")
        async with refused("INVALID_ARGUMENT", "cgroupDriver to cgroupfs"):
            await run_pod(cri, sandbox_config(linux=slice_of_systemd))
        assert snapshot().gained(before) == {}
        async with pod(cri, sandbox_config(linux=api.LinuxPodSandboxConfig(cgroup_parent="/kubepods/pod-of-cgroupfs"))):
            pass


@pytest.mark.every_engine
async def test_the_engines_cgroup_driver_is_told_to_kubelets(cri: CRI) -> None:
    response = await cri.runtime.RuntimeConfig(api.RuntimeConfigRequest())
    assert response.linux.cgroup_driver == api.CGROUPFS
    shown = (await cri.runtime.Status(api.StatusRequest())).status
    assert {one.type for one in shown.conditions} == {"RuntimeReady", "NetworkReady"}


@pytest.mark.every_engine
async def test_cgroup_parent_holds_the_infra_container_and_the_containers(cri: CRI, engine_api: DockerClient) -> None:
    sandbox = sandbox_config(linux=api.LinuxPodSandboxConfig(cgroup_parent="/kubepods/besteffort/pod-1234"))
    async with pod(cri, sandbox) as sandbox_id:
        container_id = await start(cri, sandbox_id, container_config(), sandbox)
        for one in (sandbox_id, container_id):
            assert f"/kubepods/besteffort/pod-1234/{one}\n" in (process(engine_api, one) / "cgroup").read_text()


@pytest.mark.every_engine
async def test_infra_container_runs_in_the_pods_security_context(cri: CRI, engine_api: DockerClient) -> None:
    context = linux_sandbox(
        run_as_user=api.Int64Value(value=1000),
        run_as_group=api.Int64Value(value=2000),
        supplemental_groups=[3000],
        readonly_rootfs=True,
        seccomp=api.SecurityProfile(profile_type=api.SecurityProfile.RuntimeDefault),
    )
    async with pod(cri, sandbox_config(linux=context)) as sandbox_id:
        infra = process(engine_api, sandbox_id)
        found = process_status(infra)
        mounts = [line.split() for line in (infra / "mountinfo").read_text().splitlines()]
        assert [mount[5].split(",")[0] for mount in mounts if mount[4] == "/"] == ["ro"]
    expected = {"Uid": "1000", "Gid": "2000", "Groups": "3000", "NoNewPrivs": "1", "Seccomp": "2"}
    for field, value in expected.items():
        # Several are one for each of real, effective, saved and file system id, and the groups beside the first.
        assert value in found[field].split(), field


@pytest.mark.every_engine
async def test_infra_container_without_seccomp_when_unconfined_is_asked_for(cri: CRI, engine_api: DockerClient) -> None:
    context = linux_sandbox(seccomp=api.SecurityProfile(profile_type=api.SecurityProfile.Unconfined))
    async with pod(cri, sandbox_config(linux=context)) as sandbox_id:
        assert process_status(process(engine_api, sandbox_id))["Seccomp"] == "0"


# Reading


async def test_metadata_labels_and_annotations_come_back_as_they_were_given(cri: CRI) -> None:
    config = sandbox_config(
        metadata=api.PodSandboxMetadata(name="a_b", namespace="under_score", uid="0-1_2", attempt=7),
        labels={"app": "web", "annotation.of": "a label", "empty": "", "io.kubernetes.pod.name": "a_b"},
        annotations={"example.com/json": '{"a": ["b\n"]}', "ünicode": "✓"},
    )
    async with pod(cri, config) as sandbox_id:
        for found in (await sandbox_status(cri, sandbox_id), (await sandboxes(cri))[sandbox_id]):
            assert found.metadata == config.metadata
            assert dict(found.labels) == dict(config.labels)
            assert dict(found.annotations) == dict(config.annotations)


@pytest.mark.every_engine
async def test_created_at_is_the_time_of_the_call(cri: CRI) -> None:
    before = time.time_ns()
    async with pod(cri) as sandbox_id:
        after = time.time_ns()
        found = await sandbox_status(cri, sandbox_id)
        assert before <= found.created_at <= after
        assert (await sandboxes(cri))[sandbox_id].created_at == found.created_at


async def test_status_holds_the_statuses_of_the_pods_containers(cri: CRI) -> None:
    async with container(cri) as stranger, pod(cri) as sandbox_id:
        container_id = await start(cri, sandbox_id)
        request = api.PodSandboxStatusRequest(pod_sandbox_id=sandbox_id)
        found = await cri.runtime.PodSandboxStatus(request)
        assert list(found.containers_statuses) == [await status(cri, container_id)]
        assert stranger != container_id
        assert found.timestamp == 0, "with one, kubelets of 1.37 with EventedPLEG start sidecars again and again"


async def test_verbose_status_tells_overhead_and_resources(cri: CRI, engine_api: DockerClient) -> None:
    linux = api.LinuxPodSandboxConfig(
        overhead=api.LinuxContainerResources(cpu_shares=10), resources=api.LinuxContainerResources(cpu_quota=20000)
    )
    async with pod(cri, sandbox_config(linux=linux)) as sandbox_id:
        request = api.PodSandboxStatusRequest(pod_sandbox_id=sandbox_id, verbose=True)
        info = json.loads((await cri.runtime.PodSandboxStatus(request)).info["info"])
        assert info["pid"] == int(process(engine_api, sandbox_id).name)
    assert (info["overhead"], info["resources"]) == ({"cpu_shares": "10"}, {"cpu_quota": "20000"})


@pytest.mark.every_engine
async def test_new_resources_of_a_pod_are_shown_and_leave_its_cgroup_to_the_kubelet(
    cri: CRI, engine_api: DockerClient
) -> None:
    parent = "/kubepods/pod-resized"
    linux = api.LinuxPodSandboxConfig(cgroup_parent=parent, resources=api.LinuxContainerResources(cpu_quota=20000))
    new = api.LinuxContainerResources(cpu_quota=50000, cpu_period=100000, cpu_shares=512)
    async with pod(cri, sandbox_config(linux=linux)) as sandbox_id, pod(cri, sandbox_config()) as bystander:
        await start(cri, sandbox_id, sandbox=sandbox_config(linux=linux))
        before = [engine_api.api.inspect_container(one)["HostConfig"] for one in (sandbox_id, bystander)]
        folder = Path("/sys/fs/cgroup/cpu", parent.lstrip("/"))
        files = [(folder / name).read_text() for name in ("cpu.cfs_quota_us", "cpu.shares")]
        update = api.UpdatePodSandboxResourcesRequest(pod_sandbox_id=sandbox_id[:12], resources=new)
        await asyncio.gather(*(cri.runtime.UpdatePodSandboxResources(update) for _ in range(4)))
        verbose = api.PodSandboxStatusRequest(pod_sandbox_id=sandbox_id, verbose=True)
        info = json.loads((await cri.runtime.PodSandboxStatus(verbose)).info["info"])
        assert info["resources"] == {"cpu_quota": "50000", "cpu_period": "100000", "cpu_shares": "512"}
        assert [(folder / name).read_text() for name in ("cpu.cfs_quota_us", "cpu.shares")] == files
        assert [engine_api.api.inspect_container(one)["HostConfig"] for one in (sandbox_id, bystander)] == before
    async with refused("NOT_FOUND", sandbox_id[:12]):
        await cri.runtime.UpdatePodSandboxResources(update)


async def test_list_filters(cri: CRI) -> None:
    async with (
        pod(cri, sandbox_config(labels={"app": "web", "tier": "front"})) as web,
        pod(cri, sandbox_config(labels={"app": "db"})) as db,
        pod(cri, sandbox_config(labels={"app": "web"})) as stopped,
    ):
        await cri.runtime.StopPodSandbox(api.StopPodSandboxRequest(pod_sandbox_id=stopped))
        ready = api.PodSandboxStateValue(state=api.SANDBOX_READY)
        not_ready = api.PodSandboxStateValue(state=api.SANDBOX_NOTREADY)
        assert set(await sandboxes(cri)) == {web, db, stopped}
        assert set(await sandboxes(cri, id=web)) == {web}
        assert set(await sandboxes(cri, id=web[:13])) == {web}
        assert set(await sandboxes(cri, id="f" * 64)) == set()
        assert set(await sandboxes(cri, state=ready)) == {web, db}
        assert set(await sandboxes(cri, state=not_ready)) == {stopped}
        assert set(await sandboxes(cri, label_selector={"app": "web"})) == {web, stopped}
        assert set(await sandboxes(cri, label_selector={"app": "web", "tier": "front"})) == {web}
        assert set(await sandboxes(cri, label_selector={"app": "web"}, state=ready)) == {web}
        assert set(await sandboxes(cri, id=db, label_selector={"app": "web"})) == set()


async def test_containers_that_are_no_pods_are_never_shown(cri: CRI, engine_api: DockerClient) -> None:
    other = engine_api.containers.create(BUSYBOX, name="k8s_POD_other_tests_uid_0")
    try:
        assert other.id not in await sandboxes(cri)
        assert other.id not in await containers(cri)
        async with refused("NOT_FOUND"):
            await sandbox_status(cri, str(other.id))
        await remove_pod(cri, str(other.id))
        other.reload()
    finally:
        other.remove(force=True)


async def test_status_of_an_unknown_sandbox_is_not_found(cri: CRI) -> None:
    async with refused("NOT_FOUND", "f" * 64):
        await sandbox_status(cri, "f" * 64)


# Ending


@pytest.mark.every_engine
async def test_stop_ends_the_containers_and_leaves_the_sandbox_not_ready(cri: CRI) -> None:
    async with pod(cri) as sandbox_id:
        container_id = await start(cri, sandbox_id)
        await cri.runtime.StopPodSandbox(api.StopPodSandboxRequest(pod_sandbox_id=sandbox_id))
        assert (await status(cri, container_id)).state == api.CONTAINER_EXITED
        found = await sandbox_status(cri, sandbox_id)
        assert found.state == api.SANDBOX_NOTREADY
        assert found.network.ip == ""
        assert (await sandboxes(cri))[sandbox_id].state == api.SANDBOX_NOTREADY


@pytest.mark.every_engine
async def test_nothing_runs_after_a_stop_that_came_beside_a_start(cri: CRI, engine_api: DockerClient) -> None:
    def running(container_id: str) -> bool:
        return bool(engine_api.api.inspect_container(container_id)["State"]["Running"])

    async def stopped(delay: float) -> list[bool]:
        """Whether the container ran after the stop, and after both."""
        config = in_pod(network=api.NODE, pid=api.CONTAINER)
        async with pod(cri, config) as sandbox_id:
            container_id = await create(cri, sandbox_id, in_container(network=api.NODE, pid=api.CONTAINER), config)
            starting = asyncio.ensure_future(
                cri.runtime.StartContainer(api.StartContainerRequest(container_id=container_id))
            )
            await asyncio.sleep(delay)
            await cri.runtime.StopPodSandbox(api.StopPodSandboxRequest(pod_sandbox_id=sandbox_id))
            after_stop = await asyncio.to_thread(running, container_id)
            await asyncio.wait([starting])
            starting.exception()
            return [after_stop, await asyncio.to_thread(running, container_id)]

    async with pod(cri) as sandbox_id:
        container_id = await create(cri, sandbox_id, container_config())
        begun = time.monotonic()
        await cri.runtime.StartContainer(api.StartContainerRequest(container_id=container_id))
        undisturbed = time.monotonic() - begun
    found = [await stopped(undisturbed * one / TRIES) for one in range(TRIES)]
    assert found == [[False, False]] * TRIES


async def test_remove_removes_running_containers_too(cri: CRI, snapshot: Callable[[], Snapshot]) -> None:
    before = snapshot()
    sandbox_id = await run_pod(cri, sandbox_config())
    container_id = await start(cri, sandbox_id)
    await cri.runtime.RemovePodSandbox(api.RemovePodSandboxRequest(pod_sandbox_id=sandbox_id))
    assert sandbox_id not in await sandboxes(cri)
    assert container_id not in await containers(cri)
    assert snapshot().gained(before) == {}


async def test_stop_and_remove_can_be_repeated(cri: CRI) -> None:
    async with pod(cri) as sandbox_id:
        for _ in range(2):
            await cri.runtime.StopPodSandbox(api.StopPodSandboxRequest(pod_sandbox_id=sandbox_id))
        for _ in range(2):
            await cri.runtime.RemovePodSandbox(api.RemovePodSandboxRequest(pod_sandbox_id=sandbox_id))


@pytest.mark.every_engine
async def test_stops_and_removes_at_the_same_time_all_succeed(cri: CRI, snapshot: Callable[[], Snapshot]) -> None:
    before = snapshot()
    sandbox_id = await run_pod(cri, sandbox_config())
    await start(cri, sandbox_id)
    stops = [cri.runtime.StopPodSandbox(api.StopPodSandboxRequest(pod_sandbox_id=sandbox_id)) for _ in range(3)]
    removes = [cri.runtime.RemovePodSandbox(api.RemovePodSandboxRequest(pod_sandbox_id=sandbox_id)) for _ in range(3)]
    await asyncio.gather(*stops, *removes)
    assert snapshot().gained(before) == {}


async def test_stop_and_remove_of_an_unknown_sandbox_succeed(cri: CRI) -> None:
    await remove_pod(cri, "f" * 64)


@pytest.mark.every_engine
async def test_a_sandbox_whose_infra_container_died_is_not_ready_and_can_be_removed(
    cri: CRI, engine_api: DockerClient, snapshot: Callable[[], Snapshot]
) -> None:
    before = snapshot()
    async with pod(cri) as sandbox_id:
        engine_api.api.kill(sandbox_id)

        async def state() -> int:
            return (await sandbox_status(cri, sandbox_id)).state

        await eventually(state, api.SANDBOX_NOTREADY)
        assert (await sandboxes(cri))[sandbox_id].state == api.SANDBOX_NOTREADY
        async with refused("FAILED_PRECONDITION", sandbox_id):
            await start(cri, sandbox_id)
    assert snapshot().gained(before) == {}


# The same metadata twice


async def test_metadata_of_a_ready_sandbox_is_refused_and_it_lives_on(cri: CRI) -> None:
    config = sandbox_config()
    async with pod(cri, config) as sandbox_id:
        async with refused("ALREADY_EXISTS", sandbox_id):
            await run_pod(cri, config)
        assert (await sandbox_status(cri, sandbox_id)).state == api.SANDBOX_READY


async def test_metadata_of_a_sandbox_that_has_ended_can_be_used_again(
    cri: CRI, engine_api: DockerClient, snapshot: Callable[[], Snapshot]
) -> None:
    before = snapshot()
    config = sandbox_config()
    old = await run_pod(cri, config)
    await start(cri, old)
    engine_api.api.kill(old)
    async with pod(cri, config) as sandbox_id:
        assert set(await sandboxes(cri)) == {sandbox_id}
        assert await containers(cri) == {}
    assert snapshot().gained(before) == {}


async def test_two_calls_with_the_same_metadata_make_one_sandbox(cri: CRI) -> None:
    config = sandbox_config()
    results = await asyncio.gather(*(run_pod(cri, config) for _ in range(3)), return_exceptions=True)
    made = [result for result in results if isinstance(result, str)]
    failures = [result for result in results if isinstance(result, grpc.aio.AioRpcError)]
    try:
        assert [failure.code() for failure in failures] == [grpc.StatusCode.ALREADY_EXISTS] * 2
        assert set(await sandboxes(cri)) == set(made)
    finally:
        for sandbox_id in made:
            await remove_pod(cri, sandbox_id)


# A caller that goes away


@pytest.fixture(scope="module")
def telling(start_lasting_server: Callable[..., Server]) -> Server:
    """A server that logs the end of each call."""
    return start_lasting_server("--log-level=debug")


@pytest.mark.parametrize("seconds", [0, 0.05, 0.1, 0.15, 0.2, 0.25])
async def test_a_run_whose_caller_has_gone_leaves_nothing(
    telling: Server, snapshot: Callable[[], Snapshot], seconds: float
) -> None:
    answered, ended = telling.answered("RunPodSandbox"), telling.ended("RunPodSandbox")
    before = snapshot()
    config = sandbox_config(port_mappings=[api.PortMapping(container_port=80, host_port=18081)])
    request = api.RunPodSandboxRequest(config=config)
    async with CRI(telling.target) as cri:
        call = cri.runtime.RunPodSandbox(request)
        await arrived(cri)
        await asyncio.sleep(seconds)
        call.cancel()
        # A call that is cancelled before the server has read its request has no handler, so it has no end.
        with suppress(AssertionError):
            await until(lambda: telling.ended("RunPodSandbox") > ended)
        # The answer may have crossed with the caller's leaving, or come in time.
        if telling.answered("RunPodSandbox") > answered:
            for sandbox_id in await sandboxes(cri):
                await remove_pod(cri, sandbox_id)
        # The kernel ends the links of a network namespace a little after the namespace.
        await until(lambda: set(snapshot().gained(before)) != {"links"})
        assert snapshot().gained(before) == {}


# Runtime handlers


@pytest.mark.every_engine
async def test_the_engines_runtime_is_a_handler_and_is_reported(cri: CRI) -> None:
    async with pod(cri, runtime_handler="runc") as sandbox_id:
        assert (await sandbox_status(cri, sandbox_id)).runtime_handler == "runc"
        assert (await sandboxes(cri))[sandbox_id].runtime_handler == "runc"
    async with pod(cri) as sandbox_id:
        assert (await sandbox_status(cri, sandbox_id)).runtime_handler == ""


@pytest.mark.every_engine
async def test_the_handler_of_every_dockershim_is_the_engines_default_runtime(
    cri: CRI, engine_api: DockerClient
) -> None:
    handlers = (await cri.runtime.Status(api.StatusRequest())).runtime_handlers
    assert [handler.name for handler in handlers].count("docker") == 1
    default = engine_api.info()["DefaultRuntime"]
    async with pod(cri, runtime_handler="docker") as sandbox_id:
        assert (await sandbox_status(cri, sandbox_id)).runtime_handler == "docker"
        container_id = await start(cri, sandbox_id)
        used = {engine_api.api.inspect_container(one)["HostConfig"]["Runtime"] for one in (sandbox_id, container_id)}
        assert used == {default}


@pytest.mark.every_engine
async def test_another_runtime_of_the_engine_runs_the_infra_container_and_the_containers(
    server: Server, engine: Engine, engine_api: DockerClient, tmp_path: Path
) -> None:
    second = tmp_path / "second-runtime"
    # It does not report its features, like runtimes from before the specification had any.
    second.write_text(f"""#!/bin/sh
        [ "$1" = features ] && exit 1
        echo "$@" >>{tmp_path}/called
        exec {shutil.which("runc")} "$@"
    """)
    second.chmod(0o755)
    engine.restart(f"--add-runtime=second={second}")
    async with CRI(server.target) as cri, pod(cri, runtime_handler="second") as sandbox_id:
        handlers = (await cri.runtime.Status(api.StatusRequest())).runtime_handlers
        able = {handler.name: handler.features.recursive_read_only_mounts for handler in handlers}
        assert (able[""], able["runc"], able["second"]) == (ENGINE != "20", ENGINE != "20", False)
        mount = api.Mount(host_path="/etc", container_path="/mounted", readonly=True, recursive_read_only=True)
        async with refused("INVALID_ARGUMENT", "recursive_read_only", "second does not"):
            await create(cri, sandbox_id, container_config(mounts=[mount]))
        container_id = await start(cri, sandbox_id)
        called = (tmp_path / "called").read_text()
        assert sandbox_id in called
        assert container_id in called
    engine.restart()
    server.restart()


@pytest.mark.every_engine
async def test_an_unknown_runtime_handler_is_refused(cri: CRI) -> None:
    async with refused("INVALID_ARGUMENT", "runtime_handler", "'none-such'", "runc"):
        await run_pod(cri, sandbox_config(), runtime_handler="none-such")


# The socket of the server's container life: many at once


async def test_pods_can_be_made_and_ended_at_the_same_time(cri: CRI, snapshot: Callable[[], Snapshot]) -> None:
    before = snapshot()
    ids = await asyncio.gather(*(run_pod(cri, sandbox_config()) for _ in range(8)))
    found = [await sandbox_status(cri, sandbox_id) for sandbox_id in ids]
    assert len({one.network.ip for one in found}) == 8
    await asyncio.gather(*(remove_pod(cri, sandbox_id) for sandbox_id in ids))
    assert snapshot().gained(before) == {}
