"""Pods of a real kubelet with default settings: systemd's slices, cgroup v2, a resize, OOM, restarts and a reboot."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from tests.engine import pods
from tests.vm import daemon
from tests.vm.cgroups import ROOT, Cgroup
from tests.vm.guest import Guest
from tests.vm.kubelet import GuestKubelet

pytestmark = pytest.mark.guest

MIB = 1024 * 1024
ADDRESSES = "/var/lib/cni/networks/test"
# At a reboot systemd sends SIGTERM to what runs in the engine's scopes, and waits 90 s for what takes no notice of it.
FOREVER = "trap 'exit 0' TERM; while :; do sleep 1000 & wait $!; done"


@dataclass(frozen=True, slots=True)
class Class:
    """A class of service: a container's resources, where its pod's slice is, and what the kernel has to show."""

    name: str
    number: str
    slice: str
    resources: Mapping[str, Mapping[str, str]]
    files: Mapping[str, str]
    oom_scores: range

    @property
    def cgroup(self) -> str:
        return f"{ROOT}/kubepods.slice/{self.slice}"

    def manifest(self, **limits: str) -> dict[str, Any]:
        """A static pod of this class, with other limits. Its uid is fixed: so a change of its file changes the pod."""
        resources = {**self.resources, **({"limits": {**self.resources["limits"], **limits}} if limits else {})}
        return static_pod(self.name, self.number, FOREVER, resources)


def static_pod(name: str, number: str, command: str, resources: Mapping[str, Any]) -> dict[str, Any]:
    """A static pod; ``number`` makes its uid."""
    container = {"name": "main", "image": pods.BUSYBOX, "command": ["sh", "-c", command], "resources": resources}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "uid": f"{number * 8}-2222-3333-4444-555555555555"},
        "spec": {"terminationGracePeriodSeconds": 0, "containers": [container]},
    }


GUARANTEED = Class(
    "guaranteed",
    "1",
    "kubepods-pod11111111_2222_3333_4444_555555555555.slice",
    {"limits": {"cpu": "200m", "memory": "64Mi"}},
    {"cpu.max": "20000 100000", "memory.max": str(64 * MIB), "memory.swap.max": "0", "memory.oom.group": "1"},
    range(-997, -996),
)
BURSTABLE = Class(
    "burstable",
    "2",
    "kubepods-burstable.slice/kubepods-burstable-pod22222222_2222_3333_4444_555555555555.slice",
    {"requests": {"cpu": "50m", "memory": "32Mi"}, "limits": {"cpu": "100m", "memory": "96Mi"}},
    {"cpu.max": "10000 100000", "memory.max": str(96 * MIB), "memory.oom.group": "1"},
    range(3, 1000),
)
BEST_EFFORT = Class(
    "best-effort",
    "3",
    "kubepods-besteffort.slice/kubepods-besteffort-pod33333333_2222_3333_4444_555555555555.slice",
    {},
    {"cpu.max": "max 100000", "memory.max": "max", "memory.oom.group": "1"},
    range(1000, 1001),
)
CLASSES = (GUARANTEED, BURSTABLE, BEST_EFFORT)


@pytest.fixture(scope="module")
def kubelet(guest: Guest) -> Iterator[GuestKubelet]:
    """The kubelet, with a pod of each class that is ready, and an engine with live-restore."""
    with daemon.changed(guest, {"live-restore": True}):
        made = GuestKubelet(guest)
        made.install()
        for one in CLASSES:
            made.run(one.manifest())
        made.wait(lambda: all(made.is_ready(one.name) for one in CLASSES), 120, "the pods")
        yield made
        for one in CLASSES:
            made.remove(one.name)
        made.wait(lambda: not guest.run("crictl", "ps", "-q"), 120, "the end of the pods")
        made.uninstall()
        guest.sh("crictl rmp --all")
        assert guest.sh(f"ls -A {ADDRESSES} | grep -v -e lock -e last_reserved", check=False) == ""


def container_cgroup(kubelet: GuestKubelet, one: Class) -> Cgroup:
    return Cgroup(kubelet.guest, f"{one.cgroup}/docker-{kubelet.engine_id(one.name, 'main')}.scope")


@pytest.mark.parametrize("one", [pytest.param(one, id=one.name) for one in CLASSES])
def test_a_pod_is_in_the_slice_of_its_class_with_its_limits(kubelet: GuestKubelet, one: Class) -> None:
    cgroup = container_cgroup(kubelet, one)
    assert cgroup.files(*one.files) == one.files
    pid, *_ = cgroup.read("cgroup.procs").split()
    assert int(kubelet.guest.read(f"/proc/{pid}/oom_score_adj")) in one.oom_scores
    # The engine makes its scopes in the kubelet's slice, whose limits stay those of the kubelet.
    assert Cgroup(kubelet.guest, one.cgroup).read("memory.max") == one.files["memory.max"]


def test_a_resize_changes_the_running_container(kubelet: GuestKubelet) -> None:
    before = kubelet.engine_id(BURSTABLE.name, "main")
    cgroup = container_cgroup(kubelet, BURSTABLE)
    kubelet.run(BURSTABLE.manifest(cpu="300m"))
    kubelet.wait(lambda: cgroup.read("cpu.max") == "30000 100000", 90, "the limit in the kernel")
    assert cgroup.files("memory.max", "memory.oom.group") == {"memory.max": str(96 * MIB), "memory.oom.group": "1"}
    kubelet.run(BURSTABLE.manifest())
    kubelet.wait(lambda: cgroup.read("cpu.max") == "10000 100000", 90, "the limit that it had before")
    assert kubelet.engine_id(BURSTABLE.name, "main") == before


def test_a_container_that_uses_too_much_memory_is_oom_killed(kubelet: GuestKubelet) -> None:
    """All of its processes: the kubelet's default for cgroup v2."""
    limits = {"limits": {"memory": "24Mi"}}
    kubelet.run(static_pod("greedy", "4", "sleep 1; head -c 100m /dev/zero | tail; exec sleep 1000", limits))

    def last() -> dict[str, Any]:
        main = kubelet.containers("greedy").get("main", {})
        ended: dict[str, Any] = main.get("lastState", {}).get("terminated", {})
        return ended

    kubelet.wait(last, 90, "the end of the container")
    assert (last()["exitCode"], last()["reason"]) == (137, "OOMKilled")
    kubelet.remove("greedy")
    kubelet.wait(lambda: not kubelet.status("greedy"), 90, "the removal of the pod")


def running(kubelet: GuestKubelet) -> dict[str, tuple[str, int]]:
    """The id of each pod's container, and how often it was restarted."""
    mains = {one.name: kubelet.containers(one.name)["main"] for one in CLASSES}
    return {name: (main["containerID"], main["restartCount"]) for name, main in mains.items()}


def test_pods_run_on_over_restarts_of_server_engine_and_kubelet(kubelet: GuestKubelet) -> None:
    before = running(kubelet)
    for unit in ("dockershim", "docker", "kubelet"):
        kubelet.guest.run("systemctl", "restart", unit, timeout=300)
        kubelet.wait(lambda: all(kubelet.is_ready(one.name) for one in CLASSES), 120, "the pods")
        # A new pod needs all three of them.
        kubelet.run(static_pod("new", "5", FOREVER, {}))
        kubelet.wait(lambda: kubelet.is_ready("new"), 90, f"a pod after the restart of {unit}")
        kubelet.remove("new")
        kubelet.wait(lambda: not kubelet.status("new"), 90, "the removal of the pod")
        assert running(kubelet) == before, unit


def test_pods_come_back_after_a_reboot(kubelet: GuestKubelet) -> None:
    before = running(kubelet)
    kubelet.guest.reboot()
    kubelet.wait(lambda: all(kubelet.is_ready(one.name) for one in CLASSES), 180, "the pods")
    after = running(kubelet)
    assert {name for name, (container, _) in after.items() if container == before[name][0]} == set()
    for one in CLASSES:
        assert container_cgroup(kubelet, one).files(*one.files) == one.files
    assert "Traceback" not in kubelet.guest.journal()
