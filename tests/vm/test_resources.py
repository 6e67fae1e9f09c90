"""Limits and statistics of pods whose cgroups systemd owns: it may write its own values over those of others."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from dockershim.api.cri.v1 import api_pb2 as api
from tests.cri_client import CRI
from tests.engine import pods
from tests.vm.cgroups import Cgroup, burstable, limited, of_container, of_pod
from tests.vm.guest import Guest

MIB = 1024 * 1024
# What the engine has no field for: the server writes these files.
FILES = {
    "memory.high": str(100 * MIB),
    "memory.low": str(20 * MIB),
    "memory.min": str(10 * MIB),
    "memory.oom.group": "1",
}


UID = "11d2-resources"

_names = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod of the guest for all tests: without KVM, to start and to remove one takes half a minute."""

    guest: Guest
    id: str
    config: api.PodSandboxConfig

    async def start(self, cri: CRI, command: str = "exec sleep 1000", **limits: object) -> tuple[str, Cgroup]:
        """Start a container with these resources; its id and its cgroup."""
        config = pods.container_config(command, name=f"container-{next(_names)}", linux=limited(**limits))
        container_id = await pods.start(cri, self.id, config, self.config)
        return container_id, of_container(self.guest, UID, container_id)


@pytest.fixture(scope="module")
def pod(guest: Guest) -> Iterator[Pod]:
    config = burstable(UID)

    async def run() -> str:
        async with CRI(guest.cri) as cri:
            return await pods.run_pod(cri, config)

    async def remove(sandbox_id: str) -> None:
        async with CRI(guest.cri) as cri:
            await pods.remove_pod(cri, sandbox_id)

    sandbox_id = asyncio.run(run())
    yield Pod(guest, sandbox_id, config)
    asyncio.run(remove(sandbox_id))


async def update(cri: CRI, container_id: str, **limits: object) -> None:
    """UpdateContainerResources."""
    linux = api.LinuxContainerResources(**limits)  # type: ignore[arg-type]
    request = api.UpdateContainerResourcesRequest(container_id=container_id, linux=linux)
    await cri.runtime.UpdateContainerResources(request)


@pytest.mark.guest
async def test_limits_are_in_the_pods_slice_and_in_systemds_unit(guest: Guest, cri: CRI, pod: Pod) -> None:
    container_id, cgroup = await pod.start(
        cri,
        cpu_period=100_000,
        cpu_quota=50_000,
        memory_limit_in_bytes=128 * MIB,
        memory_swap_limit_in_bytes=192 * MIB,
        unified=FILES,
    )
    expected = {
        "cpu.max": "50000 100000",
        "memory.max": str(128 * MIB),
        "memory.swap.max": str(64 * MIB),
        **FILES,
    }
    assert cgroup.files(*expected) == expected
    shown = guest.run("systemctl", "show", "--property=MemoryMax,CPUQuotaPerSecUSec", f"docker-{container_id}.scope")
    assert set(shown.split()) == {f"MemoryMax={128 * MIB}", "CPUQuotaPerSecUSec=500ms"}
    assert of_container(guest, UID, pod.id).number("cgroup.procs") > 1
    driver = (await cri.runtime.RuntimeConfig(api.RuntimeConfigRequest())).linux.cgroup_driver
    assert driver == api.SYSTEMD
    guest.run("systemctl", "daemon-reload")
    assert cgroup.files(*expected) == expected


@pytest.mark.qemu("hugepages: User Mode Linux has none, and no hugetlb controller")
async def test_a_limit_of_hugepages_is_in_the_containers_cgroup(guest: Guest, cri: CRI, pod: Pod) -> None:
    _, cgroup = await pod.start(cri, hugepage_limits=[api.HugepageLimit(page_size="2MB", limit=4 * MIB)])
    assert cgroup.read("hugetlb.2MB.max") == str(4 * MIB)
    guest.run("systemctl", "daemon-reload")
    assert cgroup.read("hugetlb.2MB.max") == str(4 * MIB)


@pytest.mark.guest
async def test_a_resize_keeps_the_limits_that_systemd_does_not_know(cri: CRI, pod: Pod) -> None:
    container_id, cgroup = await pod.start(cri, memory_limit_in_bytes=128 * MIB, unified=FILES)
    await update(cri, container_id, cpu_period=100_000, cpu_quota=40_000)
    await update(cri, container_id, memory_limit_in_bytes=160 * MIB)
    expected = {"cpu.max": "40000 100000", "memory.max": str(160 * MIB)}
    assert cgroup.files(*expected) == expected
    assert cgroup.files(*FILES) == FILES


async def test_a_resize_keeps_a_swap_limit_without_a_memory_limit(cri: CRI, pod: Pod) -> None:
    container_id, cgroup = await pod.start(cri, unified={"memory.swap.max": str(30 * MIB)})
    await update(cri, container_id, cpu_period=100_000, cpu_quota=50_000)
    assert cgroup.read("memory.swap.max") == str(30 * MIB)


async def test_the_status_tells_what_an_update_gave(cri: CRI, pod: Pod) -> None:
    container_id, cgroup = await pod.start(
        cri,
        memory_limit_in_bytes=100 * MIB,
        memory_swap_limit_in_bytes=150 * MIB,
        unified={"memory.high": str(90 * MIB)},
    )
    await update(cri, container_id, memory_swap_limit_in_bytes=-1, unified={"memory.high": str(80 * MIB)})
    shown = (await pods.status(cri, container_id)).resources.linux
    assert (dict(shown.unified), shown.memory_swap_limit_in_bytes) == ({"memory.high": str(80 * MIB)}, -1)
    assert cgroup.read("memory.high") == str(80 * MIB)
    swap = cgroup.read("memory.swap.max")
    assert swap == "max" or int(swap) > 1 << 60


async def test_crictl_update_of_memory_keeps_the_swap(guest: Guest, cri: CRI, pod: Pod) -> None:
    container_id, cgroup = await pod.start(cri, memory_limit_in_bytes=100 * MIB, memory_swap_limit_in_bytes=150 * MIB)
    guest.run("crictl", "update", "--memory", str(120 * MIB), container_id)
    expected = {"memory.max": str(120 * MIB), "memory.swap.max": str(50 * MIB)}
    assert cgroup.files(*expected) == expected


async def test_metrics_tell_the_swap_limit_alone(cri: CRI, pod: Pod) -> None:
    """cAdvisor's value with cgroup v2 is memory.swap.max, without the memory."""
    container_id, _ = await pod.start(cri, memory_limit_in_bytes=100 * MIB, memory_swap_limit_in_bytes=150 * MIB)
    answer = await cri.runtime.ListPodSandboxMetrics(api.ListPodSandboxMetricsRequest())
    found = {
        metric.name: metric.value.value
        for of_pod in answer.pod_metrics
        for of_container in of_pod.container_metrics
        if of_container.container_id == container_id
        for metric in of_container.metrics
    }
    assert found["container_spec_memory_limit_bytes"] == 100 * MIB
    assert found["container_spec_memory_swap_limit_bytes"] == 50 * MIB


async def test_a_container_that_the_kernel_killed_for_memory_says_so(cri: CRI, pod: Pod) -> None:
    container_id, _ = await pod.start(cri, "exec tail -c 90000000 /dev/zero", memory_limit_in_bytes=20 * MIB)
    status = await pods.ended(cri, container_id, timeout=60)
    assert (status.exit_code, status.reason) == (137, "OOMKilled")


@pytest.mark.guest
async def test_statistics_are_those_of_the_slice(guest: Guest, cri: CRI, pod: Pod) -> None:
    """The pod's own values are between two looks at its slice, which counts the infra container as well."""
    await pod.start(cri, "while :; do :; done", cpu_period=100_000, cpu_quota=10_000)
    cgroup = of_pod(guest, UID)

    def cpu() -> int:
        return cgroup.keyed("cpu.stat")["usage_usec"] * 1000

    before, first = cpu(), await statistics(cri, pod)
    between, second = cpu(), await statistics(cri, pod)
    after = cpu()
    values = [usage.cpu.usage_core_nano_seconds.value for usage in (first, second)]
    assert before <= values[0] <= between <= values[1] <= after
    assert before < after
    assert second.process.process_count.value == cgroup.number("pids.current")
    inactive = cgroup.keyed("memory.stat")["inactive_file"]
    assert second.memory.working_set_bytes.value == pytest.approx(
        cgroup.number("memory.current") - inactive, rel=0.2, abs=4 * MIB
    )
    assert second.cpu.psi.Some.Total > 0


async def statistics(cri: CRI, pod: Pod) -> api.LinuxPodSandboxStats:
    answer = await cri.runtime.PodSandboxStats(api.PodSandboxStatsRequest(pod_sandbox_id=pod.id))
    found: api.LinuxPodSandboxStats = answer.stats.linux
    return found
