"""Requests as a kubelet sends them for an ordinary pod, with nothing left out that it always sends.

Made after kubelet 1.37 on cgroup v2 with AppArmor, systemd's cgroup driver and the feature gates that are on by
default; ``engine`` is what a Docker 28 on such a node can do.
"""

from __future__ import annotations

from dataclasses import replace

from dockershim.api.cri.v1 import api_pb2 as cri
from dockershim.translate.capabilities import Capabilities

UID = "c3f2a1d0-4a1e-4b5c-9d0e-0123456789ab"
SANDBOX_ID = "5a" * 32
IMAGE_ID = "sha256:" + "1b" * 32
LOG_DIRECTORY = f"/var/log/pods/default_web-0_{UID}"
CGROUP_PARENT = "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podc3f2a1d0.slice"
MASKED_PATHS = ["/proc/asound", "/proc/acpi", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/timer_list"]
READONLY_PATHS = ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"]

ENGINE_28 = Capabilities(
    api=(1, 51),
    version="28.5.1",
    root_dir="/var/lib/docker",
    storage_driver="overlay2",
    containerd_store=False,
    containerd_socket="/run/containerd/containerd.sock",
    architecture="x86_64",
    runtimes=frozenset({"runc", "io.containerd.runc.v2", "kata"}),
    default_runtime="runc",
    recursive_read_only=frozenset({"runc"}),
    cgroup_driver="systemd",
    cgroup_version=2,
    apparmor=True,
    selinux=False,
    seccomp=True,
    swap_limit=True,
    cdi=True,
    kernel=(6, 12),
    kernel_release="6.12.41+deb13-amd64",
    operating_system="Debian GNU/Linux 13 (trixie)",
    live_restore=False,
    rootless=False,
    user_namespace_remap=False,
    missing_limits=(),
)
ENGINE_20 = replace(
    ENGINE_28,
    api=(1, 41),
    version="20.10.24",
    recursive_read_only=frozenset(),
    cgroup_driver="cgroupfs",
    cgroup_version=1,
    cdi=False,
    kernel=(5, 4),
    kernel_release="5.4.0-216-generic",
)


def namespaces(**fields: object) -> cri.NamespaceOption:
    """A pod's namespaces; the process ids are each container's own unless the pod says otherwise."""
    given: dict[str, object] = {
        "network": cri.POD,
        "ipc": cri.POD,
        "pid": cri.CONTAINER,
        "userns_options": cri.UserNamespace(mode=cri.NODE),
        **fields,
    }
    return cri.NamespaceOption(**given)  # type: ignore[arg-type]


def sandbox_config() -> cri.PodSandboxConfig:
    """The config of RunPodSandbox, and of each CreateContainer in that pod."""
    return cri.PodSandboxConfig(
        metadata=cri.PodSandboxMetadata(name="web-0", namespace="default", uid=UID, attempt=0),
        hostname="web-0",
        log_directory=LOG_DIRECTORY,
        dns_config=cri.DNSConfig(
            servers=["10.96.0.10"],
            searches=["default.svc.cluster.local", "svc.cluster.local", "cluster.local"],
            options=["ndots:5"],
        ),
        port_mappings=[
            cri.PortMapping(protocol=cri.TCP, container_port=80, host_port=8080),
            cri.PortMapping(protocol=cri.UDP, container_port=53),
        ],
        labels={
            "app": "web",
            "io.kubernetes.pod.name": "web-0",
            "io.kubernetes.pod.namespace": "default",
            "io.kubernetes.pod.uid": UID,
        },
        annotations={
            "kubernetes.io/config.seen": "2026-01-02T03:04:05.678901234Z",
            "kubernetes.io/config.source": "api",
        },
        linux=cri.LinuxPodSandboxConfig(
            cgroup_parent=CGROUP_PARENT,
            sysctls={"net.ipv4.ip_unprivileged_port_start": "0"},
            overhead=cri.LinuxContainerResources(),
            resources=cri.LinuxContainerResources(
                cpu_period=100000, cpu_quota=50000, cpu_shares=256, memory_limit_in_bytes=128 << 20
            ),
            security_context=cri.LinuxSandboxSecurityContext(
                namespace_options=namespaces(),
                supplemental_groups=[2000],
                seccomp=cri.SecurityProfile(profile_type=cri.SecurityProfile.RuntimeDefault),
            ),
        ),
    )


def container_config() -> cri.ContainerConfig:
    """The config of CreateContainer."""
    pod_files = f"/var/lib/kubelet/pods/{UID}"
    return cri.ContainerConfig(
        metadata=cri.ContainerMetadata(name="nginx", attempt=1),
        image=cri.ImageSpec(image=IMAGE_ID, user_specified_image="nginx:1.27", annotations={"a": "b"}),
        command=["/docker-entrypoint.sh"],
        args=["nginx", "-g", "daemon off;"],
        working_dir="/srv",
        envs=[
            cri.KeyValue(key="KUBERNETES_SERVICE_HOST", value=b"10.96.0.1"),
            cri.KeyValue(key="EMPTY", value=b""),
        ],
        mounts=[
            cri.Mount(
                container_path="/var/run/secrets/kubernetes.io/serviceaccount",
                host_path=f"{pod_files}/volumes/kubernetes.io~projected/kube-api-access-x",
                readonly=True,
            ),
            cri.Mount(container_path="/etc/hosts", host_path=f"{pod_files}/etc-hosts"),
            cri.Mount(container_path="/dev/termination-log", host_path=f"{pod_files}/containers/nginx/1a2b3c4d"),
        ],
        labels={
            "io.kubernetes.container.name": "nginx",
            "io.kubernetes.pod.name": "web-0",
            "io.kubernetes.pod.namespace": "default",
            "io.kubernetes.pod.uid": UID,
        },
        annotations={
            "io.kubernetes.container.hash": "30b1d5f5",
            "io.kubernetes.container.restartCount": "1",
            "io.kubernetes.container.terminationMessagePath": "/dev/termination-log",
            "io.kubernetes.container.terminationMessagePolicy": "File",
            "io.kubernetes.pod.terminationGracePeriod": "30",
        },
        log_path="nginx/1.log",
        linux=cri.LinuxContainerConfig(
            resources=cri.LinuxContainerResources(
                cpu_period=100000,
                cpu_quota=50000,
                cpu_shares=256,
                memory_limit_in_bytes=128 << 20,
                oom_score_adj=996,
                hugepage_limits=[
                    cri.HugepageLimit(page_size="2MB", limit=0),
                    cri.HugepageLimit(page_size="1GB", limit=0),
                ],
                unified={"memory.min": "0", "memory.low": "0", "memory.oom.group": "1", "memory.swap.max": "0"},
            ),
            security_context=cri.LinuxContainerSecurityContext(
                capabilities=cri.Capability(),
                namespace_options=namespaces(),
                run_as_user=cri.Int64Value(value=0),
                supplemental_groups=[2000],
                masked_paths=MASKED_PATHS,
                readonly_paths=READONLY_PATHS,
                seccomp=cri.SecurityProfile(profile_type=cri.SecurityProfile.RuntimeDefault),
                apparmor=cri.SecurityProfile(profile_type=cri.SecurityProfile.RuntimeDefault),
                apparmor_profile="runtime/default",
            ),
        ),
    )
