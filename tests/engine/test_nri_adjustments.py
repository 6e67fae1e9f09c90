"""What plugins change of a container is what a real engine makes of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from docker import DockerClient

from dockershim.api.cri.v1 import api_pb2 as cri_api
from dockershim.api.nri.v1alpha1 import api_pb2 as api
from dockershim.nri.adjustments import CreateResult
from dockershim.nri.devices import find_nodes
from dockershim.nri.engine_body import REMEDY, apply_adjustment, blame, device_numbers, to_edits
from dockershim.nri.resources import update_body
from dockershim.translate.capabilities import Capabilities, read_capabilities
from dockershim.translate.cdi import NO_EDITS, HostPath, check_host
from dockershim.translate.container import EngineLog, check_container, to_engine_container
from dockershim.translate.names import SandboxName, container_name
from tests.cri_client import CRI
from tests.engine.pods import (
    BUSYBOX,
    cgroup_file,
    container_config,
    containers,
    pod,
    process,
    process_status,
    sandbox_config,
    sh,
    status,
)
from tests.waiting import eventually, until

pytestmark = pytest.mark.every_engine

PLUGIN = "10-test"
#: A rule that shows itself: making a folder is refused with an error that nothing else has.
NO_FOLDERS = api.LinuxSeccomp(
    default_action="SCMP_ACT_ALLOW",
    syscalls=[
        api.LinuxSyscall(names=["mkdir", "mkdirat"], action="SCMP_ACT_ERRNO", errno_ret=api.OptionalUInt32(value=39))
    ],
)


@pytest.fixture(autouse=True, scope="module")
def image(engine_api: DockerClient) -> None:
    engine_api.images.pull(BUSYBOX)


@pytest.fixture
def features(engine_api: DockerClient) -> Capabilities:
    major, minor = engine_api.version()["ApiVersion"].split(".")
    return read_capabilities((int(major), int(minor)), engine_api.info())


def make(
    engine_api: DockerClient, features: Capabilities, sandbox_id: str, config: Any, adjust: api.ContainerAdjustment
) -> str:
    """A container of the pod, made as CreateContainer makes it, with an adjustment; its id."""
    labels = engine_api.api.inspect_container(sandbox_id)["Config"]["Labels"]
    sandbox = sandbox_config(metadata=cri_api.PodSandboxMetadata(name=labels["io.kubernetes.pod.name"]))
    pod_name = SandboxName(labels["io.kubernetes.pod.name"], "tests", labels["io.kubernetes.pod.uid"], 0)
    check_container(config, sandbox, features)
    body = to_engine_container(
        config,
        sandbox,
        sandbox_id=sandbox_id,
        pod=pod_name,
        image=BUSYBOX,
        runtime="",
        profiles={},
        volumes={},
        account=None,
        cdi_edits=NO_EDITS,
        lowest_oom_score=-1000,
        features=features,
        engine_log=EngineLog("1m", 1),
    )
    result = CreateResult(api.CreateContainerRequest(container=api.Container(id="new")))
    result.apply(PLUGIN, api.CreateContainerResponse(adjust=adjust))
    where = blame(result.owners, "new")
    edits = to_edits(result.adjustment, where, find_nodes(device_numbers(result.adjustment)))
    check_host(edits, {path: look_at(path) for path in edits.host_paths}, REMEDY)
    apply_adjustment(body, result.adjustment, where, edits=edits, lowest_oom_score=-1000, features=features)
    name = container_name(config.metadata.name, config.metadata.attempt, pod_name)
    return str(engine_api.api.create_container_from_config(body, name)["Id"])


def look_at(path: str) -> HostPath:
    found = Path(path).lstat()
    number = found.st_rdev
    return HostPath(found.st_mode, found.st_uid, found.st_gid, number >> 8 & 0xFFF, number & 0xFF, 0)


async def listed(cri: CRI, container_id: str) -> bool:
    return container_id in await containers(cri)


@asynccontextmanager
async def started(
    cri: CRI, engine_api: DockerClient, features: Capabilities, config: Any = None, **adjust: Any
) -> AsyncIterator[str]:
    name, uid = "nri", "uid-nri"
    labels = {"io.kubernetes.pod.name": name, "io.kubernetes.pod.uid": uid}
    metadata = cri_api.PodSandboxMetadata(name=name, namespace="tests", uid=uid)
    async with pod(cri, sandbox_config(metadata=metadata, labels=labels)) as sandbox_id:
        adjustment = api.ContainerAdjustment(**adjust)
        container_id = make(engine_api, features, sandbox_id, config or container_config(), adjustment)
        # The server learns by an event of what others make.
        await eventually(lambda: listed(cri, container_id), True)
        await cri.runtime.StartContainer(cri_api.StartContainerRequest(container_id=container_id))
        yield container_id


async def test_variables_arguments_and_annotations(cri: CRI, engine_api: DockerClient, features: Capabilities) -> None:
    config = container_config(
        envs=[cri_api.KeyValue(key="KEPT", value=b"1"), cri_api.KeyValue(key="GONE", value=b"1")],
        annotations={"gone": "1", "changed": "1"},
    )
    async with started(
        cri,
        engine_api,
        features,
        config,
        args=["/bin/sleep", "999"],
        env=[
            api.KeyValue(key="KEPT", value="2"),
            api.KeyValue(key="NEW", value="a=b c"),
            api.KeyValue(key="-GONE"),
            api.KeyValue(key="-PATH"),
            api.KeyValue(key="-HOSTNAME"),
        ],
        annotations={"-gone": "", "changed": "2", "new": "a\nb"},
    ) as container_id:
        own = process(engine_api, container_id)
        assert set((own / "environ").read_text().split("\0")) - {""} == {"KEPT=2", "NEW=a=b c", "HOME=/root"}
        assert (own / "cmdline").read_text() == "/bin/sleep\0" + "999\0"
        assert dict((await status(cri, container_id)).annotations) == {"changed": "2", "new": "a\nb"}
        if features.api >= (1, 43):
            told = engine_api.api.inspect_container(container_id)["HostConfig"]["Annotations"]
            assert told == {"changed": "2", "new": "a\nb"}


async def test_mounts(cri: CRI, engine_api: DockerClient, features: Capabilities, tmp_path: Path) -> None:
    for name in ("old", "new", "gone"):
        (tmp_path / name).mkdir()
        (tmp_path / name / name).touch()
    config = container_config(
        mounts=[
            cri_api.Mount(container_path="/replaced", host_path=str(tmp_path / "old")),
            cri_api.Mount(container_path="/gone", host_path=str(tmp_path / "gone")),
            cri_api.Mount(container_path="/tmpfs", host_path=str(tmp_path / "old")),
        ]
    )
    mounts = [
        api.Mount(destination="/replaced/", type="bind", source=str(tmp_path / "new"), options=["rbind", "ro"]),
        api.Mount(destination="/added", source=str(tmp_path / "new"), options=["bind", "rw", "rslave"]),
        api.Mount(destination="/tmpfs", type="tmpfs", source="tmpfs", options=["size=64k", "nosuid", "mode=0700"]),
        api.Mount(destination="-/gone"),
    ]
    async with started(cri, engine_api, features, config, mounts=mounts) as container_id:
        lines = (process(engine_api, container_id) / "mountinfo").read_text().splitlines()
        by_place = {fields[4]: (fields[5], fields) for fields in map(str.split, lines)}
        assert (
            await sh(cri, container_id, "ls /replaced /added; ls -d /gone || true") == "/added:\nnew\n\n/replaced:\nnew"
        )
        assert by_place["/replaced"][0].startswith("ro")
        assert by_place["/added"][0].startswith("rw")
        assert any(field.startswith("master:") for field in by_place["/added"][1])
        assert set(by_place["/tmpfs"][0].split(",")) >= {"rw", "nosuid"}
        assert not set(by_place["/tmpfs"][0].split(",")) & {"noexec", "nodev"}
        assert "/gone" not in by_place
        assert await sh(cri, container_id, "stat -c %a /tmpfs; df -k /tmpfs | tail -1 | awk '{print $2}'") == "700\n64"


async def test_devices_and_limits(cri: CRI, engine_api: DockerClient, features: Capabilities) -> None:
    devices = [api.LinuxDevice(path="/dev/nri-full", type="c", major=1, minor=7)]
    rlimits = [
        api.POSIXRlimit(type="RLIMIT_MEMLOCK", soft=32100, hard=43200),
        api.POSIXRlimit(type="RLIMIT_CORE", soft=2**64 - 1, hard=2**64 - 1),
    ]
    spec = api.LinuxContainerAdjustment(devices=devices, oom_score_adj=api.OptionalInt(value=321))
    async with started(cri, engine_api, features, rlimits=rlimits, linux=spec) as container_id:
        assert await sh(cri, container_id, "stat -c %t:%T /dev/nri-full; head -c 1 /dev/nri-full | wc -c") == "1:7\n1"
        own = process(engine_api, container_id)
        limits = {line[:26].strip(): line[26:].split()[:2] for line in (own / "limits").read_text().splitlines()}
        assert limits["Max locked memory"] == ["32100", "43200"]
        assert limits["Max core file size"] == ["unlimited", "unlimited"]
        assert (own / "oom_score_adj").read_text().strip() == "321"


async def test_resources(cri: CRI, engine_api: DockerClient, features: Capabilities) -> None:
    resources = api.LinuxResources(
        memory=api.LinuxMemory(limit=api.OptionalInt64(value=64 << 20), reservation=api.OptionalInt64(value=32 << 20)),
        cpu=api.LinuxCPU(quota=api.OptionalInt64(value=20_000), period=api.OptionalUInt64(value=50_000), cpus="0"),
        pids=api.LinuxPids(limit=77),
    )
    if features.cgroup_version == 2:
        resources.unified["memory.high"] = str(48 << 20)
    path = "nri-test.slice:docker:x" if features.cgroup_driver == "systemd" else "/nri-test.d/x"
    spec = api.LinuxContainerAdjustment(resources=resources, cgroups_path=path)
    async with started(cri, engine_api, features, linux=spec) as container_id:
        own = process(engine_api, container_id)
        assert "/nri-test." in (own / "cgroup").read_text()
        assert cgroup_file(own, "pids.max") == "77"
        assert process_status(own)["Cpus_allowed_list"] == "0"
        if features.cgroup_version == 2:
            files = ("memory.max", "memory.low", "memory.high", "cpu.max")
            expected = [str(64 << 20), str(32 << 20), str(48 << 20), "20000 50000"]
            assert [cgroup_file(own, name) for name in files] == expected
        change = api.LinuxResources(pids=api.LinuxPids(limit=88), cpu=api.LinuxCPU(quota=api.OptionalInt64(value=0)))
        fields, files_after = update_body(
            change, blame(api.OwningPlugins(), ""), before=cri_api.LinuxContainerResources(), features=features
        )
        assert files_after == {}
        url = f"{engine_api.api.base_url}/v{engine_api.api.api_version}/containers/{container_id}/update"
        engine_api.api.post(url, json=fields).raise_for_status()
        await until(lambda: cgroup_file(own, "pids.max") == "88")
        if features.cgroup_version == 2:
            assert cgroup_file(own, "cpu.max") == "max 50000"


async def test_sysctls_and_namespaces(cri: CRI, engine_api: DockerClient, features: Capabilities) -> None:
    """The network is the pod's, so this is its sysctl from then on, as with other runtimes."""
    spec = api.LinuxContainerAdjustment(
        sysctl={"net.ipv4.ip_unprivileged_port_start": "1234", "kernel.shmmni": "1234"},
        namespaces=[
            api.LinuxNamespace(type="-pid"),
            api.LinuxNamespace(type="-cgroup"),
            api.LinuxNamespace(type="ipc"),
        ],
    )
    async with started(cri, engine_api, features, linux=spec) as container_id:
        shown = await sh(cri, container_id, "cat /proc/sys/net/ipv4/ip_unprivileged_port_start /proc/sys/kernel/shmmni")
        assert shown == "1234\n1234"
        own = process(engine_api, container_id)
        infra = process(
            engine_api, (await status(cri, container_id)).labels.get("", "") or pod_of(engine_api, container_id)
        )
        for kind in ("pid", "cgroup"):
            # The engine's process is in the node's namespaces, and so is this one.
            assert (own / f"ns/{kind}").readlink() == Path(f"/proc/self/ns/{kind}").readlink()
        assert (own / "ns/ipc").readlink() != (infra / "ns/ipc").readlink()
        assert (own / "ns/net").readlink() == (infra / "ns/net").readlink()


def pod_of(engine_api: DockerClient, container_id: str) -> str:
    labels: dict[str, str] = engine_api.api.inspect_container(container_id)["Config"]["Labels"]
    return labels["io.kubernetes.sandbox.id"]


async def test_a_seccomp_policy_is_in_force(cri: CRI, engine_api: DockerClient, features: Capabilities) -> None:
    spec = api.LinuxContainerAdjustment(seccomp_policy=NO_FOLDERS)
    async with started(cri, engine_api, features, linux=spec) as container_id:
        assert process_status(process(engine_api, container_id))["Seccomp"] == "2"
        assert "Directory not empty" in await sh(cri, container_id, "mkdir /x 2>&1; true")


@pytest.mark.parametrize(
    "rule",
    [
        api.LinuxDeviceCgroup(
            allow=True, type="c", major=api.OptionalInt64(value=10), minor=api.OptionalInt64(value=237), access="rwm"
        ),
        api.LinuxDeviceCgroup(allow=True, type="c", access="rwm"),
    ],
    ids=["one", "all"],
)
async def test_rules_for_devices(
    rule: api.LinuxDeviceCgroup, cri: CRI, engine_api: DockerClient, features: Capabilities
) -> None:
    spec = api.LinuxContainerAdjustment(resources=api.LinuxResources(devices=[rule]))
    async with started(cri, engine_api, features, linux=spec) as container_id:
        assert await sh(cri, container_id, "mknod /x c 10 237 && exec 3</x && echo opened") == "opened"
