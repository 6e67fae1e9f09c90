"""User namespaces on an older kernel, with AppArmor, cgroup v2 and systemd's slices, and runc as Debian has it."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from dockershim.api.cri.v1 import api_pb2 as api
from tests.cri_client import CRI
from tests.engine import pods
from tests.vm import user_namespaces
from tests.vm.cgroups import burstable
from tests.vm.guest import Guest

IDS = api.IDMapping(host_id=3_000_000_000, length=65536)


@pytest.fixture
def registered(guest: Guest) -> Iterator[None]:
    """The steps of docs/user-namespaces.md, undone afterwards."""
    with user_namespaces.registered(guest):
        yield


async def test_a_pod_with_users_of_its_own(guest: Guest, registered: None) -> None:
    asked = api.UserNamespace(mode=api.POD, uids=[IDS], gids=[IDS])
    options = api.NamespaceOption(userns_options=asked)
    context = api.LinuxSandboxSecurityContext(namespace_options=options)
    config = pods.sandbox_config(
        linux=api.LinuxPodSandboxConfig(security_context=context, cgroup_parent="/kubepods.slice")
    )
    guest.sh("mkdir -p /srv/volume && echo words >/srv/volume/file && chmod 600 /srv/volume/file")
    mount = api.Mount(host_path="/srv/volume", container_path="/volume", uidMappings=[IDS], gidMappings=[IDS])
    main = api.LinuxContainerConfig(
        resources=api.LinuxContainerResources(memory_limit_in_bytes=100 << 20, unified={"memory.high": "50003968"}),
        security_context=api.LinuxContainerSecurityContext(namespace_options=options),
    )
    async with CRI(guest.cri) as cri, pods.pod(cri, config) as sandbox_id:
        container_id = await pods.start(cri, sandbox_id, pods.container_config(linux=main, mounts=[mount]), config)
        assert await pods.sh(cri, container_id, "tr -s ' ' </proc/self/uid_map; cat /volume/file") == (
            f" 0 {IDS.host_id} {IDS.length}\nwords"
        )
        assert await pods.sh(cri, container_id, "touch /volume/new /own && stat -c %u /volume/new /own") == "0\n0"
        assert guest.sh("stat -c %u /srv/volume/new").strip() == "0"
        assert await pods.sh(cri, container_id, "cat /proc/self/attr/current") == "docker-default (enforce)"
        assert await pods.sh(cri, container_id, "cat /sys/fs/cgroup/memory.high") == "50003968"
        assert "inet 10.88." in await pods.sh(cri, container_id, "ip -4 addr show eth0")


async def test_what_a_kubelet_asks_of_cgroups_holds_from_the_first_instruction_on(
    guest: Guest, registered: None
) -> None:
    config = burstable("11d2-unified")
    files = {"memory.min": "0", "memory.low": "0", "memory.oom.group": "1", "memory.high": "50003968"}
    resources = api.LinuxContainerResources(
        memory_limit_in_bytes=100 << 20, memory_swap_limit_in_bytes=100 << 20, unified=files | {"memory.swap.max": "0"}
    )
    read = "cd /sys/fs/cgroup && head -n 1 " + " ".join((*files, "memory.swap.max"))
    command = f"{read} >/first; touch /done; exec sleep 1000"
    async with CRI(guest.cri) as cri, pods.pod(cri, config) as sandbox_id:
        main = pods.container_config(command, linux=api.LinuxContainerConfig(resources=resources))
        container_id = await pods.start(cri, sandbox_id, main, config)
        first = await pods.sh(cri, container_id, "until test -e /done; do sleep 0.1; done; cat /first")
        assert dict(re.findall(r"==> (.+) <==\n(.+)", first)) == files | {"memory.swap.max": "0"}
        update = api.LinuxContainerResources(cpu_period=100_000, cpu_quota=40_000)
        await cri.runtime.UpdateContainerResources(
            api.UpdateContainerResourcesRequest(container_id=container_id, linux=update)
        )
        assert await pods.sh(cri, container_id, read) == first
        assert (
            guest.sh(f"docker inspect --format '{{{{.HostConfig.Runtime}}}}' {container_id}").strip()
            == user_namespaces.RUNTIME
        )
