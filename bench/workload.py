"""The pods of a run, as a kubelet asks for them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dockershim.api.cri.v1 import api_pb2 as cri
from dockershim.cgroups import huge_page_size

IMAGE = "registry.k8s.io/e2e-test-images/busybox:1.29-2"
NAMESPACE = "bench"
#: The first process of a PID namespace ignores SIGTERM unless it has a handler.
ENDS_AT_ONCE = ("sh", "-c", 'trap "exit 0" TERM; sleep 100000 & wait')
COMMAND = ("echo", "hello")
GRACE = 30  # seconds
_HUGE_PAGES = Path("/sys/kernel/mm/hugepages")
_CGROUP_V2 = Path("/sys/fs/cgroup/cgroup.controllers")
_OWN_PROCESSES = cri.NamespaceOption(pid=cri.CONTAINER)


@dataclass(frozen=True, slots=True)
class Workload:
    """``folder`` is for what the kubelet keeps on the node: logs, and files that it mounts into containers."""

    folder: Path

    def prepare(self) -> None:
        (self.folder / "etc-hosts").write_text("127.0.0.1 localhost\n")
        (self.folder / "volume").mkdir()

    def sandbox(self, name: str) -> cri.PodSandboxConfig:
        return cri.PodSandboxConfig(
            metadata=cri.PodSandboxMetadata(name=name, namespace=NAMESPACE, uid=f"uid-{name}"),
            hostname=name,
            log_directory=str(self.folder / "logs" / name),
            dns_config=cri.DNSConfig(
                servers=["10.96.0.10"],
                searches=[f"{NAMESPACE}.svc.cluster.local", "svc.cluster.local", "cluster.local"],
                options=["ndots:5"],
            ),
            labels=_labels(name),
            annotations={"kubernetes.io/config.source": "api", "kubernetes.io/config.seen": "2020-01-01T00:00:00Z"},
            linux=cri.LinuxPodSandboxConfig(
                security_context=cri.LinuxSandboxSecurityContext(
                    namespace_options=_OWN_PROCESSES,
                    seccomp=cri.SecurityProfile(profile_type=cri.SecurityProfile.RuntimeDefault),
                )
            ),
        )

    def container(self, name: str, image: str) -> cri.ContainerConfig:
        """The container of the pod ``name``; ``image`` is an id."""
        return cri.ContainerConfig(
            metadata=cri.ContainerMetadata(name="main"),
            image=cri.ImageSpec(image=image, user_specified_image=IMAGE),
            command=ENDS_AT_ONCE,
            envs=[cri.KeyValue(key=f"SERVICE_{number}_HOST", value=b"10.96.0.1") for number in range(8)],
            mounts=[
                cri.Mount(container_path="/etc/hosts", host_path=str(self.folder / "etc-hosts")),
                cri.Mount(container_path="/volume", host_path=str(self.folder / "volume")),
            ],
            labels=_labels(name) | {"io.kubernetes.container.name": "main"},
            annotations={"io.kubernetes.container.hash": "1234abcd", "io.kubernetes.container.restartCount": "0"},
            log_path="main/0.log",
            linux=cri.LinuxContainerConfig(
                resources=_resources(),
                security_context=cri.LinuxContainerSecurityContext(
                    namespace_options=_OWN_PROCESSES,
                    masked_paths=["/proc/acpi", "/proc/kcore", "/proc/keys", "/proc/timer_list", "/sys/firmware"],
                    readonly_paths=["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"],
                    no_new_privs=True,
                ),
            ),
        )


def _resources() -> cri.LinuxContainerResources:
    """What a kubelet of 1.37 sends for a container with a CPU request and a memory limit, with the gates as they are.

    It limits every size of huge pages that the kernel has; ``unified`` is for cgroup v2.
    """
    sizes = sorted(int(path.name.removeprefix("hugepages-").removesuffix("kB")) for path in _HUGE_PAGES.glob("*"))
    unified = {"memory.min": "0", "memory.low": "0", "memory.oom.group": "1", "memory.swap.max": "0"}
    return cri.LinuxContainerResources(
        cpu_period=100_000,
        cpu_shares=102,
        memory_limit_in_bytes=128 << 20,
        oom_score_adj=996,
        hugepage_limits=[cri.HugepageLimit(page_size=huge_page_size(size)) for size in sizes],
        unified=unified if _CGROUP_V2.exists() else {},
    )


def _labels(name: str) -> dict[str, str]:
    return {
        "io.kubernetes.pod.name": name,
        "io.kubernetes.pod.namespace": NAMESPACE,
        "io.kubernetes.pod.uid": f"uid-{name}",
        "app": "bench",
    }
