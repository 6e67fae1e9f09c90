"""The cgroups of the guest, and where a kubelet with the systemd driver puts a pod."""

from __future__ import annotations

from dataclasses import dataclass

from dockershim.api.cri.v1 import api_pb2 as api
from tests.engine import pods
from tests.vm.guest import Guest

ROOT = "/sys/fs/cgroup"
BURSTABLE = "/kubepods.slice/kubepods-burstable.slice"


@dataclass(frozen=True, slots=True)
class Cgroup:
    """One cgroup of the guest, by its folder."""

    guest: Guest
    folder: str

    def read(self, name: str) -> str:
        return self.guest.read(f"{self.folder}/{name}")

    def number(self, name: str) -> int:
        return int(self.read(name))

    def keyed(self, name: str) -> dict[str, int]:
        """A file with a key and a number in each line."""
        return {key: int(value) for key, value in (line.split() for line in self.read(name).splitlines())}

    def files(self, *names: str) -> dict[str, str]:
        """What several files hold, read by one command."""
        told = self.guest.sh(f"cd {self.folder} && grep -H . {' '.join(names)}")
        return dict(line.split(":", 1) for line in told.splitlines())


def slice_of(uid: str) -> str:
    """The cgroup parent that a kubelet gives for a burstable pod: the kubelet makes it, here the engine does."""
    return f"{BURSTABLE}/kubepods-burstable-pod{uid.replace('-', '_')}.slice"


def burstable(uid: str) -> api.PodSandboxConfig:
    """The configuration of a burstable pod."""
    metadata = api.PodSandboxMetadata(name=uid, namespace="tests", uid=uid)
    linux = api.LinuxPodSandboxConfig(cgroup_parent=slice_of(uid))
    return pods.sandbox_config(metadata=metadata, log_directory=f"/var/log/pods/{uid}", linux=linux)


def limited(**limits: object) -> api.LinuxContainerConfig:
    """A container with these resources."""
    return api.LinuxContainerConfig(resources=api.LinuxContainerResources(**limits))  # type: ignore[arg-type]


def of_pod(guest: Guest, uid: str) -> Cgroup:
    return Cgroup(guest, f"{ROOT}{slice_of(uid)}")


def of_container(guest: Guest, uid: str, container_id: str) -> Cgroup:
    return Cgroup(guest, f"{ROOT}{slice_of(uid)}/docker-{container_id}.scope")
