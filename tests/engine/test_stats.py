"""Statistics and metrics, compared with the known work of containers and with the engine's statistics."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from docker import DockerClient
from pyroute2 import IPRoute

from dockershim.api.cri.v1 import api_pb2 as api
from dockershim.stats.rates import SHORTEST
from tests.cri_client import CRI
from tests.engine.measured import measured, pod_metrics, stats
from tests.engine.pods import (
    container_config,
    linux_sandbox,
    pod,
    process,
    pull,
    refused,
    run,
    sandbox_config,
    sandbox_status,
    sh,
    start,
)
from tests.node.engine import Engine
from tests.node.server import Server
from tests.processes import descriptors
from tests.unit.stats.expected_metrics import EXPECTED
from tests.waiting import answer, last_answer, until

MIB = 1024 * 1024
#: By how much a value may differ from the engine's.
CLOSE = 0.02
#: Nanoseconds.
TICK = 10**9 // os.sysconf("SC_CLK_TCK")
#: Measured on some nodes only: by kernels with cgroup v2, with huge pages, or for devices that were written to.
OPTIONAL = ("hugetlb", "pressure", "blkio", "fs_reads", "fs_writes")


async def pod_stats(cri: CRI, sandbox_id: str) -> api.PodSandboxStats:
    response = await cri.runtime.PodSandboxStats(api.PodSandboxStatsRequest(pod_sandbox_id=sandbox_id))
    found: api.PodSandboxStats = response.stats
    return found


async def keys(cri: CRI) -> dict[str, list[str]]:
    response = await cri.runtime.ListMetricDescriptors(api.ListMetricDescriptorsRequest())
    return {one.name: list(one.label_keys) for one in response.descriptors}


def by_name(
    metrics: api.ContainerMetrics | api.PodSandboxMetrics, label_keys: Mapping[str, list[str]], name: str, **labels: str
) -> int:
    """The value of the one metric with this name and these labels."""
    (found,) = (
        metric.value.value
        for metric in metrics.metrics
        if metric.name == f"container_{name}"
        and labels.items() <= dict(zip(label_keys[metric.name], metric.label_values, strict=True)).items()
    )
    return int(found)


def in_cgroup(parent: str, **fields: Any) -> api.PodSandboxConfig:
    """A pod with a cgroup of its own, as kubelets give one to each."""
    return sandbox_config(linux=api.LinuxPodSandboxConfig(cgroup_parent=parent), **fields)


# -- containers


async def test_a_busy_container_has_used_what_the_kernel_says_and_a_silent_one_none(
    cri: CRI, engine_api: DockerClient
) -> None:
    await pull(cri)
    async with pod(cri) as sandbox_id:
        busy = await start(cri, sandbox_id, container_config("while :; do :; done", name="busy"))
        silent = await start(cri, sandbox_id, container_config(name="silent"))
        first = process(engine_api, busy)
        outer = cpu_time(first)
        before = await stats(cri, busy)
        inner = cpu_time(first)
        await asyncio.sleep(1.1 * SHORTEST / 1e9)  # the least of a rate
        inner = cpu_time(first) - inner
        after = await stats(cri, busy)
        outer = cpu_time(first) - outer
        used = after.cpu.usage_core_nano_seconds.value - before.cpu.usage_core_nano_seconds.value
        # However loaded the cores are. The kernel rounds the user and the system time of a process down to ticks, and
        # may bring the count of its cgroup up to date only at the next tick.
        assert inner - 3 * TICK <= used <= outer + 3 * TICK
        assert after.cpu.usage_nano_cores.value == used * 10**9 // (after.cpu.timestamp - before.cpu.timestamp)
        assert (await stats(cri, silent)).cpu.usage_core_nano_seconds.value < used


def cpu_time(process: Path) -> int:
    """Nanoseconds of CPU that a process has used, proc_pid_stat(5)."""
    fields = (process / "stat").read_text().rpartition(") ")[2].split()
    return sum(map(int, fields[11:13])) * TICK


async def test_the_working_set_has_no_page_cache(cri: CRI) -> None:
    await pull(cri)
    async with pod(cri) as sandbox_id:
        container_id = await start(
            cri, sandbox_id, container_config("dd if=/dev/zero of=/file bs=1M count=64; sync; exec sleep 1000")
        )
        found = await answer(lambda: stats(cri, container_id), lambda found: found.memory.usage_bytes.value >= 64 * MIB)
        assert found.memory.working_set_bytes.value < 32 * MIB
        assert not found.memory.HasField("available_bytes")


async def test_what_is_available_is_the_limit_less_the_working_set(cri: CRI) -> None:
    await pull(cri)
    limits = api.LinuxContainerResources(memory_limit_in_bytes=64 * MIB, memory_swap_limit_in_bytes=64 * MIB)
    async with pod(cri) as sandbox_id:
        config = container_config(linux=api.LinuxContainerConfig(resources=limits))
        memory = (await stats(cri, await start(cri, sandbox_id, config))).memory
    assert memory.available_bytes.value == 64 * MIB - memory.working_set_bytes.value


@pytest.mark.every_engine
async def test_lists_and_their_filters(cri: CRI) -> None:
    await pull(cri)
    async with pod(cri) as first, pod(cri) as second:
        one = await start(cri, first, container_config(labels={"colour": "red"}))
        # Where containerd has the layer, it is found while the container runs.
        two = await start(cri, second, container_config("sleep 2"))

        async def listed(**wanted: Any) -> dict[str, api.ContainerStats]:
            request = api.ListContainerStatsRequest(filter=api.ContainerStatsFilter(**wanted))
            response = await cri.runtime.ListContainerStats(request)
            return {item.attributes.id: item for item in response.stats}

        assert set(await listed()) == {one, two}
        assert set(await listed(id=one)) == {one}
        assert set(await listed(pod_sandbox_id=second)) == {two}
        assert set(await listed(label_selector={"colour": "red"})) == {one}
        assert set(await listed(label_selector={"colour": "blue"})) == set()
        ended = (await answer(lambda: listed(id=two), lambda found: not found[two].HasField("cpu")))[two]
        # A container that has ended only has its usage of the disk.
        assert ended.attributes.metadata.name == "main"
        assert not ended.HasField("memory")
        assert (await measured(cri, two, 1)).inodes_used.value == 1
        request = api.StreamContainerStatsRequest()
        parts = [part async for part in cri.runtime.StreamContainerStats(request)]
        assert {item.attributes.id for part in parts for item in part.container_stats} == {one, two}


#: What engines and systemd do that run in containers: the first process moves below its cgroup, a child of it does not.
MOVES = (
    "sleep 1000 & for one in /sys/fs/cgroup/ /sys/fs/cgroup/*/; do"
    " mkdir -p $one/init && echo $$ > $one/init/cgroup.procs; done; cat /proc/self/cgroup > /moved; exec sleep 1000"
)


def has_moved(response: api.ExecSyncResponse) -> bool:
    """Whether the file that is written after the move was read."""
    return not response.exit_code and bool(response.stdout)


async def test_a_container_whose_first_process_has_moved_below_its_cgroup(cri: CRI, engine_api: DockerClient) -> None:
    await pull(cri)
    label_keys = await keys(cri)
    privileged = api.LinuxContainerConfig(security_context=api.LinuxContainerSecurityContext(privileged=True))
    of_pod = linux_sandbox(privileged=True)
    of_pod.cgroup_parent = "/kubepods/pod-moved"
    async with pod(cri, config := sandbox_config(linux=of_pod)) as sandbox_id:
        container_id = await start(cri, sandbox_id, container_config(MOVES, linux=privileged), config)
        await answer(lambda: run(cri, container_id, "cat", "/moved"), has_moved)
        first = process(engine_api, container_id)
        assert f"{container_id}/init" in (first / "cgroup").read_text()
        found = await stats(cri, container_id)
        theirs = engine_api.api.stats(container_id, stream=False)
        assert 0 < found.cpu.usage_core_nano_seconds.value <= theirs["cpu_stats"]["cpu_usage"]["total_usage"]
        assert found.memory.usage_bytes.value > 0
        of_pod_found = (await pod_stats(cri, sandbox_id)).linux
        assert of_pod_found.process.process_count.value == 3
        (of_container,) = (await pod_metrics(cri))[sandbox_id].container_metrics
        assert by_name(of_container, label_keys, "processes", id=f"/kubepods/pod-moved/{container_id}") == 2
        resources = api.LinuxContainerResources(oom_score_adj=700)
        request = api.UpdateContainerResourcesRequest(container_id=container_id, linux=resources)
        await cri.runtime.UpdateContainerResources(request)
        children = (first / "task" / first.name / "children").read_text().split()
        scores = [Path("/proc", pid, "oom_score_adj").read_text() for pid in (first.name, *children)]
        assert scores == ["700\n", "700\n"]


#: This shell moves to a cgroup of a name, which it makes if there is none.
JOINS = (
    "for one in /sys/fs/cgroup/ /sys/fs/cgroup/*/; do"
    " mkdir -p $one/$name && echo $$ > $one/$name/cgroup.procs; done 2> /dev/null"
)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        pytest.param(r"a\377", "a\\xff", id="no UTF-8"),
        pytest.param(r"a\034b", "a\x1cb", id="an end of line by Unicode"),
    ],
)
async def test_names_that_a_pod_has_chosen(
    cri: CRI, server: Server, engine_api: DockerClient, name: str, told: str
) -> None:
    """A pod that names its interface and its cgroup as it likes has statistics, and so have others."""
    await pull(cri)
    before = server.log_end()
    label_keys = await keys(cri)
    privileged = api.LinuxContainerConfig(security_context=api.LinuxContainerSecurityContext(privileged=True))
    of_pod = linux_sandbox(privileged=True)
    rename = f"name=$(printf '{name}'); ip link set eth0 down && ip link set eth0 name $name && echo > /renamed\n"
    moves = f"{JOINS}; cat /proc/self/cgroup > /moved; exec sleep 1000"
    async with pod(cri) as bystander, pod(cri, config := sandbox_config(linux=of_pod)) as sandbox_id:
        beside = await start(cri, bystander)
        container_id = await start(cri, sandbox_id, container_config(rename + moves, linux=privileged), config)
        await answer(lambda: run(cri, container_id, "cat", "/renamed", "/moved"), has_moved)
        raw = name.encode().decode("unicode_escape").encode("latin-1")
        assert b"/" + raw in (process(engine_api, container_id) / "cgroup").read_bytes()
        for _ in range(2):
            listed = (await cri.runtime.ListPodSandboxStats(api.ListPodSandboxStatsRequest())).stats
            pods = {one.attributes.id: one.linux for one in listed}
            assert [one.name for one in pods[sandbox_id].network.interfaces] == [told]
            assert not pods[sandbox_id].network.HasField("default_interface")
            assert pods[bystander].network.default_interface.name == "eth0"
            assert all(pod.containers[0].memory.usage_bytes.value > 0 for pod in pods.values())
            metrics = await pod_metrics(cri)
            received = "network_receive_bytes_total"
            assert by_name(metrics[sandbox_id], label_keys, received, interface=told) >= 0
            assert by_name(metrics[bystander], label_keys, received, interface="eth0") >= 0
            assert {one.container_id for of in metrics.values() for one in of.container_metrics} >= {
                beside,
                container_id,
            }
            listed_alone = (await cri.runtime.ListContainerStats(api.ListContainerStatsRequest())).stats
            assert all(one.HasField("memory") for one in listed_alone if one.attributes.id in (beside, container_id))
        assert "Traceback" not in server.log_end().removeprefix(before)
        # A command that takes too long is found by its cgroup, and killed.
        late = rf"name=$(printf '{name}'); {JOINS}; exec sleep 12345"
        async with refused("DEADLINE_EXCEEDED"):
            await run(cri, container_id, "sh", "-c", late, timeout=1)
        commands = (path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline"))
        assert not any(command == b"sleep\x0012345\0" for command in commands)


async def test_a_container_that_does_not_exist(cri: CRI) -> None:
    async with refused("NOT_FOUND"):
        await stats(cri, "0" * 64)


# -- pods


async def test_a_pods_statistics_are_those_of_its_cgroup(cri: CRI) -> None:
    await pull(cri)
    async with pod(cri, config := in_cgroup("/kubepods/pod-stats")) as sandbox_id:
        ids = {
            await start(cri, sandbox_id, container_config("sleep 1000 & exec sleep 1000", name=name), config)
            for name in ("one", "two")
        }
        # The shells start their second processes a little later.
        found = (
            await answer(lambda: pod_stats(cri, sandbox_id), lambda found: found.linux.process.process_count.value >= 5)
        ).linux
        assert found.process.process_count.value == 5
        assert {one.attributes.id for one in found.containers} == ids
        of_containers = sum(one.memory.usage_bytes.value for one in found.containers)
        assert of_containers < found.memory.usage_bytes.value < of_containers + 16 * MIB
        used = sum(one.cpu.usage_core_nano_seconds.value for one in found.containers)
        assert found.cpu.usage_core_nano_seconds.value >= used
        assert found.cpu.HasField("usage_nano_cores")
        assert found.network.default_interface.name == "eth0"
        assert list(found.network.interfaces) == []


async def test_a_pod_without_a_cgroup_is_its_containers_together(cri: CRI) -> None:
    await pull(cri)
    async with pod(cri) as sandbox_id:
        await start(cri, sandbox_id)
        found = (await pod_stats(cri, sandbox_id)).linux
        (container,) = found.containers
        assert container.memory.usage_bytes.value < found.memory.usage_bytes.value < 16 * MIB
        assert found.process.process_count.value == 2


@pytest.mark.every_engine
async def test_pods_are_listed_by_filters_and_those_that_have_ended_have_no_values(cri: CRI) -> None:
    await pull(cri)

    async def listed(**wanted: Any) -> dict[str, api.PodSandboxStats]:
        request = api.ListPodSandboxStatsRequest(filter=api.PodSandboxStatsFilter(**wanted))
        response = await cri.runtime.ListPodSandboxStats(request)
        return {item.attributes.id: item for item in response.stats}

    red = sandbox_config(labels={"colour": "red"}, annotations={"a": "b"})
    on_the_node = sandbox_config(linux=linux_sandbox(namespace_options=api.NamespaceOption(network=api.NODE)))
    async with pod(cri, red) as first, pod(cri, on_the_node) as second:
        await start(cri, first)
        assert set(await listed()) == {first, second}
        assert set(await listed(id=first)) == {first}
        assert set(await listed(label_selector={"colour": "red"})) == {first}
        assert set(await listed(label_selector={"colour": "blue"})) == set()
        found = (await listed())[first].attributes
        assert (found.metadata, dict(found.labels), dict(found.annotations)) == (
            red.metadata,
            {"colour": "red"},
            {"a": "b"},
        )
        # The node's traffic is not that of one of its pods.
        assert not (await pod_stats(cri, second)).linux.HasField("network")
        request = api.StreamPodSandboxStatsRequest()
        parts = [part async for part in cri.runtime.StreamPodSandboxStats(request)]
        assert {item.attributes.id for part in parts for item in part.pod_sandbox_stats} == {first, second}
        await cri.runtime.StopPodSandbox(api.StopPodSandboxRequest(pod_sandbox_id=first))
        ended = await pod_stats(cri, first)
        assert ended.HasField("linux")
        assert not ended.linux.HasField("cpu")
        assert [one.HasField("memory") for one in ended.linux.containers] == [False]
        assert first not in await pod_metrics(cri)
    async with refused("NOT_FOUND"):
        await pod_stats(cri, first)


def kept_open(server: Server) -> Counter[str]:
    """The files of cgroups and networks that the server has open."""
    return Counter(link for link in descriptors(server.pid) if "/cgroup/" in link or link.startswith("/proc/"))


def tie(process: Path, name: str) -> None:
    """Make an interface of the node that the kernel removes with the network namespace of a process."""
    with IPRoute() as routes:
        routes.link("add", ifname=name, kind="veth", peer={"ifname": "tied", "net_ns_pid": int(process.name)})


async def test_nothing_is_held_of_a_pod_that_has_ended(cri: CRI, server: Server, engine_api: DockerClient) -> None:
    await pull(cri)
    before = kept_open(server)
    async with pod(cri, config := in_cgroup("/kubepods/pod-ends")) as sandbox_id:
        container_id = await start(cri, sandbox_id, container_config(), config)
        # In a thread: where an event loop runs pyroute2 would need to be awaited.
        await asyncio.to_thread(tie, process(engine_api, sandbox_id), "tied-to-a-pod")
        await pod_stats(cri, sandbox_id)
        await pod_metrics(cri)
        assert any(link.endswith("/net/dev") for link in kept_open(server) - before)
        await cri.runtime.StopContainer(api.StopContainerRequest(container_id=container_id))
        assert not [link for link in kept_open(server) - before if container_id in link]
        await cri.runtime.StopPodSandbox(api.StopPodSandboxRequest(pod_sandbox_id=sandbox_id))
        assert kept_open(server) == before
        await until(lambda: not Path("/sys/class/net/tied-to-a-pod").exists())


async def test_nothing_is_held_of_a_pod_that_was_killed_and_what_runs_again_is_read_again(
    cri: CRI, server: Server, engine_api: DockerClient
) -> None:
    await pull(cri)
    before = kept_open(server)
    async with pod(cri, config := in_cgroup("/kubepods/pod-killed")) as sandbox_id:
        container_id = await start(cri, sandbox_id, container_config(), config)
        await pod_stats(cri, sandbox_id)
        engine_api.api.restart(container_id, timeout=0)
        await answer(lambda: stats(cri, container_id), lambda found: found.HasField("memory"))
        # Its processes are in the infra container's PID namespace, and end with it.
        engine_api.api.kill(sandbox_id)
        await until(lambda: kept_open(server) == before)


# -- metrics


@pytest.mark.every_engine
async def test_metrics_have_what_kubelets_have_had_from_cadvisor(cri: CRI) -> None:
    await pull(cri)
    limits = api.LinuxContainerResources(
        cpu_period=100000, cpu_quota=20000, cpu_shares=512, memory_limit_in_bytes=64 * MIB
    )
    label_keys = await keys(cri)
    async with pod(cri, config := in_cgroup("/kubepods/pod-metrics")) as sandbox_id:
        container = container_config(linux=api.LinuxContainerConfig(resources=limits))
        container_id = await start(cri, sandbox_id, container, config)
        await sh(cri, container_id, "echo hello > /file")
        await measured(cri, container_id, 1)
        found = (await pod_metrics(cri))[sandbox_id]
        (of_container,) = found.container_metrics
        assert of_container.container_id == container_id
        every = [*found.metrics, *of_container.metrics]
        told = {metric.name for metric in every}
        missing = {f"container_{name}" for name in EXPECTED.split() if not name.startswith(OPTIONAL)} - told
        assert missing == set()
        assert told <= set(label_keys)
        assert all(len(metric.label_values) == len(label_keys[metric.name]) for metric in every)
        # A scrape fails of two with the same labels; one that is not cached has no time of its own.
        assert len({(metric.name, *metric.label_values) for metric in every}) == len(every)
        assert all(metric.timestamp == 0 and metric.HasField("value") for metric in every)
        labels = dict(zip(label_keys["container_last_seen"], of_container.metrics[-1].label_values, strict=False))
        assert labels == {
            "id": f"/kubepods/pod-metrics/{container_id}",
            "name": f"k8s_main_{config.metadata.name}_tests_{config.metadata.uid}_0",
            "image": container.image.image,
            "namespace": "tests",
            "pod": config.metadata.name,
            "container": "main",
        }
        assert by_name(of_container, label_keys, "spec_cpu_quota") == 20000
        assert by_name(of_container, label_keys, "spec_cpu_shares") == 512
        assert by_name(of_container, label_keys, "spec_memory_limit_bytes") == 64 * MIB
        assert by_name(of_container, label_keys, "processes") == 1
        assert abs(by_name(of_container, label_keys, "last_seen") - time.time()) < 5
        assert abs(by_name(of_container, label_keys, "start_time_seconds") - time.time()) < 30
        request = api.StreamPodSandboxMetricsRequest()
        parts = [part async for part in cri.runtime.StreamPodSandboxMetrics(request)]
        assert [item.pod_sandbox_id for part in parts for item in part.pod_sandbox_metrics] == [sandbox_id]


# -- against the engine

#: Burns CPU for a while, then holds 40 MB of memory and a file of 24 MiB that is still in the page cache.
KNOWN = (
    "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done; dd if=/dev/urandom of=/file bs=1M count=24 conv=fsync;"
    " (head -c 40000000 /dev/zero; touch /ready; exec sleep 1000) | tail"
)


@pytest.mark.every_engine
async def test_values_are_those_of_the_engine_within_two_per_cent(
    start_server: Callable[..., Server], engine_api: DockerClient
) -> None:
    server = start_server("--network-plugin=docker", "--disk-usage-interval=1s")
    async with CRI(server.target) as cri:
        await pull(cri)
        label_keys = await keys(cri)
        async with pod(cri, config := in_cgroup("/kubepods/pod-known")) as sandbox_id, pod(cri) as other:
            container_id = await start(cri, sandbox_id, container_config(KNOWN), config)
            await start(cri, other, container_config("sleep 1000 | nc -l -p 9999 > /dev/null"))
            await answer(lambda: run(cri, container_id, "test", "-e", "/ready"), lambda done: not done.exit_code)
            address = (await sandbox_status(cri, other)).network.ip
            await sh(cri, container_id, f"head -c 5000000 /dev/zero | nc {address} 9999")
            await measured(cri, container_id, 24 * MIB)

            # A kernel may take page cache back between two readings.
            close = await last_answer(
                lambda: _beside_the_engine(cri, engine_api, sandbox_id, container_id, label_keys),
                lambda close: all(within(*pair) for pair in close.values()),
            )
    assert {name: pair for name, pair in close.items() if not within(*pair)} == {}, close
    # And these are the known amounts of the container's work.
    ours = {name: pair[0] for name, pair in close.items()}
    assert ours["rss"] == pytest.approx(40_000_000, rel=0.05)
    assert 12 * MIB < ours["cache"] < 25.2 * MIB
    assert ours["writable layer"] == pytest.approx(24 * MIB, rel=CLOSE)
    # Beside the data, the head of each packet.
    assert 5_000_000 < ours["sent"] < 5_500_000
    assert ours["cpu"] > 10**8


async def _beside_the_engine(
    cri: CRI, engine_api: DockerClient, sandbox_id: str, container_id: str, label_keys: Mapping[str, list[str]]
) -> dict[str, tuple[int, int]]:
    """Values of ours and of the engine, read one after the other."""
    ours = await stats(cri, container_id)
    network = (await pod_stats(cri, sandbox_id)).linux.network.default_interface
    (metrics,) = (await pod_metrics(cri))[sandbox_id].container_metrics
    theirs = engine_api.api.stats(container_id, stream=False)
    of_infra = engine_api.api.stats(sandbox_id, stream=False)["networks"]["eth0"]
    size = engine_api.api._result(
        engine_api.api._get(engine_api.api._url("/containers/{0}/json", container_id), params={"size": 1}),
        json=True,
    )["SizeRw"]
    told = theirs["memory_stats"]["stats"]
    inactive = told.get("total_inactive_file", told.get("inactive_file"))
    return {
        "cpu": (ours.cpu.usage_core_nano_seconds.value, theirs["cpu_stats"]["cpu_usage"]["total_usage"]),
        "memory": (ours.memory.usage_bytes.value, theirs["memory_stats"]["usage"]),
        "working set": (ours.memory.working_set_bytes.value, theirs["memory_stats"]["usage"] - inactive),
        "rss": (ours.memory.rss_bytes.value, told.get("total_rss", told.get("anon"))),
        "page faults": (ours.memory.page_faults.value, told.get("total_pgfault", told.get("pgfault"))),
        "cache": (by_name(metrics, label_keys, "memory_cache"), told.get("total_cache", told.get("file"))),
        "inactive": (by_name(metrics, label_keys, "memory_total_inactive_file_bytes"), inactive),
        "threads": (by_name(metrics, label_keys, "threads"), theirs["pids_stats"]["current"]),
        "written": (written(metrics), written_by_engine(theirs)),
        "writable layer": (ours.writable_layer.used_bytes.value, size),
        "received": (network.rx_bytes.value, of_infra["rx_bytes"]),
        "sent": (network.tx_bytes.value, of_infra["tx_bytes"]),
    }


def within(ours: int, theirs: int) -> bool:
    return abs(ours - theirs) <= CLOSE * theirs


def written(metrics: api.ContainerMetrics) -> int:
    """Some kernels count this of no cgroup, or of those with a limit only."""
    return sum(metric.value.value for metric in metrics.metrics if metric.name == "container_fs_writes_bytes_total")


def written_by_engine(theirs: Mapping[str, Any]) -> int:
    entries = theirs["blkio_stats"]["io_service_bytes_recursive"] or ()
    return sum(entry["value"] for entry in entries if entry["op"].lower() == "write")


async def test_no_call_waits_for_the_engine(cri: CRI, engine: Engine) -> None:
    """They are answered while the engine is stopped, until the server has noticed it."""
    await pull(cri)
    async with pod(cri) as sandbox_id:
        container_id = await start(cri, sandbox_id)
        await measured(cri, container_id, 1)
        await cri.images.ImageFsInfo(api.ImageFsInfoRequest())
        assert engine.pid is not None
        os.kill(engine.pid, signal.SIGSTOP)
        try:
            async with asyncio.timeout(1):
                assert (await stats(cri, container_id)).HasField("memory")
                assert (await pod_stats(cri, sandbox_id)).linux.HasField("network")
                assert (await pod_metrics(cri))[sandbox_id].container_metrics
                assert (await cri.images.ImageFsInfo(api.ImageFsInfoRequest())).image_filesystems
        finally:
            os.kill(engine.pid, signal.SIGCONT)


# -- disk


async def test_a_hostile_tree_neither_hides_nor_adds_anything(start_server: Callable[..., Server]) -> None:
    """Links to the node's files, and folders deeper than a path is long, in a container's writable layer."""
    async with CRI(start_server("--disk-usage-interval=1s").target) as cri:
        await pull(cri)
        async with pod(cri) as sandbox_id:
            deep = "i=0; while [ $i -lt 1500 ]; do mkdir d; cd d || exit 1; i=$((i+1)); done"
            command = f"{deep}; dd if=/dev/zero of=file bs=1M count=8; ln -s / /link; ln -s .. /up; exec sleep 1000"
            container_id = await start(cri, sandbox_id, container_config(command))
            layer = await measured(cri, container_id, 8 * MIB)
            assert 1500 < layer.inodes_used.value < 1520
            # A folder takes a block; what is behind the links is much more.
            assert layer.used_bytes.value < 8 * MIB + 1520 * 4096
