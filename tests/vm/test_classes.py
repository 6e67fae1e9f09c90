"""A pod of each class of service, in slices that systemd has from a kubelet, with the values that one gives."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pytest

from dockershim.api.cri.v1 import api_pb2 as api
from tests.cri_client import CRI
from tests.engine import pods
from tests.vm.cgroups import ROOT, Cgroup, limited
from tests.vm.guest import Guest

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Class:
    """A class of service: the slice of its pods, what a kubelet sets there, and for a container."""

    parent: str
    slice_properties: tuple[str, ...]
    slice_files: Mapping[str, str]
    resources: Mapping[str, int]
    files: Mapping[str, str]

    @property
    def unit(self) -> str:
        return self.parent.rpartition("/")[2]


GUARANTEED = Class(
    "/kubepods.slice/kubepods-pod11d2_guaranteed.slice",
    ("CPUWeight=20", "CPUQuota=50%", f"MemoryMax={128 * MIB}"),
    {"cpu.weight": "20", "cpu.max": "50000 100000", "memory.max": str(128 * MIB)},
    {
        "cpu_shares": 512,
        "cpu_period": 100_000,
        "cpu_quota": 50_000,
        "memory_limit_in_bytes": 128 * MIB,
        "memory_swap_limit_in_bytes": 128 * MIB,
        "oom_score_adj": -997,
    },
    {"cpu.max": "50000 100000", "memory.max": str(128 * MIB), "memory.swap.max": "0"},
)
BURSTABLE = Class(
    "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod11d2_burstable.slice",
    ("CPUWeight=4",),
    {"cpu.weight": "4", "memory.max": "max"},
    {
        "cpu_shares": 102,
        "memory_limit_in_bytes": 200 * MIB,
        "memory_swap_limit_in_bytes": 200 * MIB,
        "oom_score_adj": 983,
    },
    {"cpu.max": "max 100000", "memory.max": str(200 * MIB), "memory.swap.max": "0"},
)
BEST_EFFORT = Class(
    "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod11d2_besteffort.slice",
    ("CPUWeight=1",),
    {"cpu.weight": "1", "memory.max": "max"},
    {"cpu_shares": 2, "oom_score_adj": 1000},
    {"cpu.weight": "1", "cpu.max": "max 100000", "memory.max": "max"},
)


@pytest.fixture
def pod_slice(guest: Guest, request: pytest.FixtureRequest) -> Iterator[Class]:
    """The slice as a kubelet makes it before the pod, and removes it afterwards."""
    given: Class = request.param
    guest.run("systemctl", "set-property", "--runtime", given.unit, *given.slice_properties)
    guest.run("systemctl", "start", given.unit)
    yield given
    guest.run("systemctl", "stop", given.unit)
    guest.run("systemctl", "revert", given.unit)
    assert guest.ended(f"test -e {ROOT}{given.parent}").code == 1


@pytest.mark.guest
@pytest.mark.parametrize(
    "pod_slice",
    [
        pytest.param(GUARANTEED, id="guaranteed"),
        pytest.param(BURSTABLE, id="burstable"),
        pytest.param(BEST_EFFORT, id="best-effort"),
    ],
    indirect=True,
)
async def test_a_pod_is_in_its_slice_with_the_values_of_its_class(guest: Guest, cri: CRI, pod_slice: Class) -> None:
    uid = re.sub(r".*pod(.*)\.slice", r"\1", pod_slice.unit)
    config = pods.sandbox_config(
        metadata=api.PodSandboxMetadata(name=uid, namespace="tests", uid=uid),
        log_directory=f"/var/log/pods/{uid}",
        linux=api.LinuxPodSandboxConfig(cgroup_parent=pod_slice.parent),
    )
    linux = limited(**pod_slice.resources)
    async with pods.pod(cri, config) as sandbox_id:
        container_id = await pods.start(cri, sandbox_id, pods.container_config(linux=linux), config)
        cgroup = Cgroup(guest, f"{ROOT}{pod_slice.parent}/docker-{container_id}.scope")
        assert cgroup.files(*pod_slice.files) == pod_slice.files
        [pid] = cgroup.read("cgroup.procs").split()
        assert guest.read(f"/proc/{pid}/oom_score_adj") == str(pod_slice.resources["oom_score_adj"])
        infra = Cgroup(guest, f"{ROOT}{pod_slice.parent}/docker-{sandbox_id}.scope")
        assert guest.read(f"/proc/{infra.number('cgroup.procs')}/oom_score_adj") == "-998"
        # The engine has made scopes in the slice; the slice is still the kubelet's.
        of_slice = Cgroup(guest, f"{ROOT}{pod_slice.parent}")
        assert of_slice.files(*pod_slice.slice_files) == pod_slice.slice_files
        assert guest.ended(f"test -e {cgroup.folder}").code == 0
    assert guest.ended(f"ls -d {ROOT}{pod_slice.parent}/*.scope").code == 2
