"""Pods exactly as cri-dockerd and the in-tree dockershim make them are taken over while they run."""

from __future__ import annotations

import asyncio
import base64
import json
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from docker import DockerClient

import cni
from dockershim.api.cri.v1 import api_pb2 as api
from dockershim.engine.oom import lowest_oom_score
from tests.cri_client import CRI
from tests.engine.pods import (
    BUSYBOX,
    container_config,
    containers,
    process,
    refused,
    remove_pod,
    run,
    sandbox_status,
    sandboxes,
    sh,
    start,
    status,
)
from tests.engine.web_pods import fetch
from tests.node.server import Server
from tests.node.state import Snapshot
from tests.waiting import answer, until

PAUSE = "registry.k8s.io/pause:3.9"
CNI_CACHE = Path("/var/lib/cni/cache/results")
CNI_CONFIG = Path("/etc/cni/net.d/10-test.conflist")
PLUGINS = Path("/opt/cni/bin")
LOOPBACK = '{\n  "cniVersion": "0.2.0",\n  "name": "cni-loopback",\n  "plugins":[{\n    "type": "loopback"\n  }]\n}'
SERVES = "mkdir /tmp/www; echo served >/tmp/www/index.html; echo begun; exec httpd -f -p 80 -h /tmp/www"


@dataclass(frozen=True)
class Shim:
    """How another shim makes its pods.

    ``mounts`` is the form in which it gives volumes to the engine. ``checksum`` is that of a checkpoint with the one
    port; other package names give the in-tree dockershim another one. ``suffix`` is the seventh field of a name, which
    they add after a conflict.
    """

    root: Path
    mounts: str
    checksum: int
    suffix: str = ""
    ids: list[str] = field(default_factory=list, hash=False)

    @property
    def checkpoints(self) -> Path:
        return self.root / "sandbox"


CRI_DOCKERD = Shim(Path("/var/lib/cri-dockerd"), "Binds", 2344035810)
SHIMS = [
    pytest.param(CRI_DOCKERD, id="cri-dockerd-with-binds"),
    pytest.param(Shim(Path("/var/lib/cri-dockerd"), "Mounts", 2344035810, "_1a2b3c4d"), id="cri-dockerd-with-mounts"),
    pytest.param(Shim(Path("/var/lib/in-tree"), "Binds", 4036303174), id="in-tree"),
]


@dataclass(frozen=True)
class Made:
    """A pod of another shim."""

    name: str
    sandbox: str
    container: str
    address: str
    log: Path


@pytest.fixture(autouse=True)
def images(engine_api: DockerClient) -> None:
    for image in (PAUSE, BUSYBOX):
        engine_api.images.pull(image)


@pytest.fixture
def folders(tmp_path: Path) -> Iterator[Path]:
    """What shims make when they start; gives a folder to mount."""
    roots = {shim.values[0].root for shim in SHIMS if isinstance(shim.values[0], Shim)}
    for root in roots:
        (root / "sandbox").mkdir(parents=True)
    yield tmp_path
    for root in roots:
        subprocess.run(["rm", "-rf", root], check=True)


def _labels(kind: str, **more: str) -> dict[str, str]:
    return {"io.kubernetes.docker.type": kind, "io.kubernetes.pod.name": "web", "app": "web", "annotation.a": "b"} | {
        key.replace("__", "."): value for key, value in more.items()
    }


def _sandbox_config(name: str, score: int) -> dict[str, Any]:
    return {
        "Hostname": name,
        "Image": PAUSE,
        "ExposedPorts": {"80/tcp": {}},
        "Labels": _labels("podsandbox", io__kubernetes__container__name="POD"),
        "HostConfig": {
            "NetworkMode": "none",
            "IpcMode": "shareable",
            "PortBindings": {"80/tcp": [{"HostIp": "", "HostPort": "18080"}]},
            "OomScoreAdj": score,
            "SecurityOpt": ["no-new-privileges"],
            "CpuShares": 2,
            "ShmSize": 67108864,
            "RestartPolicy": {"Name": "no"},
        },
    }


def _container_config(shim: Shim, sandbox_id: str, log: Path, mounted: Path) -> dict[str, Any]:
    mounts: list[Any] = [f"{mounted}:/mounted:ro"]
    if shim.mounts == "Mounts":
        mounts = [{"Type": "bind", "Source": str(mounted), "Target": "/mounted", "ReadOnly": True}]
    labels = {
        "io.kubernetes.sandbox.id": sandbox_id,
        "io.kubernetes.container.logpath": str(log),
        "annotation.io.kubernetes.container.restartCount": "3",
        "io.kubernetes.container.name": "main",
    }
    return {
        "Entrypoint": ["sh", "-c", SERVES],
        "Image": BUSYBOX,
        "Healthcheck": {"Test": ["NONE"]},
        "Labels": _labels("container") | labels,
        "HostConfig": {
            shim.mounts: mounts,
            "NetworkMode": f"container:{sandbox_id}",
            "IpcMode": f"container:{sandbox_id}",
            "SecurityOpt": ["seccomp=unconfined"],
            "RestartPolicy": {"Name": "no"},
        },
    }


async def make(shim: Shim, engine_api: DockerClient, folder: Path, name: str = "web") -> Made:
    """What RunPodSandbox, CreateContainer and StartContainer of another shim leave on a node."""
    low = engine_api.api
    # -998, except on a machine where root may not lower a score.
    score = max(-998, lowest_oom_score("unix:///run/docker.sock"))
    fields = f"{name}_tests_uid-{name}_2{shim.suffix}"
    sandbox_id = low.create_container_from_config(_sandbox_config(name, score), f"k8s_POD_{fields}")["Id"]
    ports = [{"protocol": "tcp", "container_port": 80, "host_port": 18080}]
    checkpoint = {"version": "v1", "name": name, "namespace": "tests", "data": {"port_mappings": ports}}
    file = shim.checkpoints / sandbox_id
    file.write_text(json.dumps(checkpoint | {"checksum": shim.checksum}, separators=(",", ":")))
    file.chmod(0o600)
    low.start(sandbox_id)
    Path(low.inspect_container(sandbox_id)["ResolvConfPath"]).write_text("nameserver 10.96.0.10\n")
    address = await _attach(sandbox_id, name, process(engine_api, sandbox_id) / "ns" / "net", folder)

    log = folder / name / "main" / "3.log"
    log.parent.mkdir(parents=True)
    # A kubelet asks for containers by the id of their image.
    config = _container_config(shim, sandbox_id, log, folder) | {"Image": engine_api.images.get(BUSYBOX).id}
    container_id = low.create_container_from_config(config, f"k8s_main_{name}_tests_uid-{name}_3{shim.suffix}")["Id"]
    low.start(container_id)
    log.symlink_to(low.inspect_container(container_id)["LogPath"])
    return Made(name, sandbox_id, container_id, address, log)


async def _attach(sandbox_id: str, name: str, netns: Path, folder: Path) -> str:
    """ADD as their libcni runs it: with the namespace of the process, loopback first, and its own cache format."""
    capabilities = {
        "ipRanges": [[{"subnet": ""}]],
        "portMappings": [{"hostPort": 18080, "containerPort": 80, "protocol": "tcp", "hostIP": ""}],
    }
    args = {"IgnoreUnknown": "1", "K8S_POD_NAMESPACE": "tests", "K8S_POD_NAME": name}
    pairs = tuple((args | {"K8S_POD_INFRA_CONTAINER_ID": sandbox_id}).items())
    runtime = cni.Runtime([PLUGINS], folder / "elsewhere")
    attachment = cni.Attachment(sandbox_id, str(netns), args=pairs, capability_args=capabilities)
    address = ""
    for raw in (LOOPBACK, CNI_CONFIG.read_text()):
        network = cni.NetworkList.parse(raw.encode(), "a test")
        result = await runtime.add(network, attachment)
        cached = {
            "kind": "cniCacheV1",
            "containerId": sandbox_id,
            "config": base64.b64encode(raw.encode()).decode(),
            "ifName": "eth0",
            "networkName": network.name,
            "cniArgs": [list(pair) for pair in pairs],
            "capabilityArgs": capabilities,
            "result": result.as_json(network.version),
        }
        CNI_CACHE.mkdir(mode=0o700, parents=True, exist_ok=True)
        (CNI_CACHE / f"{network.name}-{sandbox_id}-eth0").write_text(json.dumps(cached))
        address = next((str(ip.address.ip) for ip in result.ips if ip.address.version == 4), "")
    return address


@asynccontextmanager
async def taken_over(start_server: Callable[..., Server], *shims: Shim) -> AsyncIterator[CRI]:
    roots = [f"--adopt-from={shim.root}" for shim in shims]
    server = await asyncio.to_thread(start_server, *roots)
    async with CRI(server.target) as cri:
        yield cri


@pytest.mark.every_engine
@pytest.mark.parametrize("shim", SHIMS)
async def test_a_pod_is_taken_over_while_it_runs(
    shim: Shim,
    start_server: Callable[..., Server],
    engine_api: DockerClient,
    folders: Path,
    snapshot: Callable[[], Snapshot],
) -> None:
    before = snapshot()
    made = await make(shim, engine_api, folders)
    processes = [process(engine_api, one) for one in (made.sandbox, made.container)]
    async with taken_over(start_server, shim) as cri:
        await _check_shown(cri, made, folders)
        await _check_used(cri, made)
        assert [process(engine_api, one) for one in (made.sandbox, made.container)] == processes
        assert await fetch("127.0.0.1", 18080) == "served"
        for _ in range(2):
            await cri.runtime.StopPodSandbox(api.StopPodSandboxRequest(pod_sandbox_id=made.sandbox))
        assert (await sandboxes(cri))[made.sandbox].state == api.SANDBOX_NOTREADY
        for _ in range(2):
            await cri.runtime.RemovePodSandbox(api.RemovePodSandboxRequest(pod_sandbox_id=made.sandbox))
        assert made.sandbox not in await sandboxes(cri)
    assert snapshot().gained(before) == {}
    assert list(shim.checkpoints.iterdir()) == []
    assert not made.log.is_symlink()


async def _check_shown(cri: CRI, made: Made, mounted: Path) -> None:
    metadata = api.PodSandboxMetadata(name=made.name, namespace="tests", uid=f"uid-{made.name}", attempt=2)
    listed = (await sandboxes(cri))[made.sandbox]
    shown = await sandbox_status(cri, made.sandbox)
    for one in (listed, shown):
        assert (one.state, one.metadata) == (api.SANDBOX_READY, metadata)
        assert dict(one.labels) == {"io.kubernetes.pod.name": "web", "app": "web"}
        assert dict(one.annotations) == {"a": "b"}
    assert shown.network.ip == made.address
    assert [one.ip.startswith("fd00:88:") for one in shown.network.additional_ips] == [True]
    container = (await containers(cri, pod_sandbox_id=made.sandbox))[made.container]
    assert (container.metadata.name, container.metadata.attempt) == ("main", 3)
    found = await status(cri, made.container)
    assert (found.state, found.log_path) == (api.CONTAINER_RUNNING, str(made.log))
    assert dict(found.annotations)["io.kubernetes.container.restartCount"] == "3"
    assert found.image.image == BUSYBOX
    assert found.image_ref.startswith(f"{BUSYBOX.partition(':')[0]}@sha256:")
    (mount,) = found.mounts
    assert (mount.host_path, mount.container_path, mount.readonly) == (str(mounted), "/mounted", True)


async def _check_used(cri: CRI, made: Made) -> None:
    assert "10.96.0.10" in await sh(cri, made.container, "cat /etc/resolv.conf")
    assert (await run(cri, made.container, "sh", "-c", "exit 3")).exit_code == 3
    found = await cri.runtime.ContainerStats(api.ContainerStatsRequest(container_id=made.container))
    assert found.stats.cpu.usage_core_nano_seconds.value > 0
    assert json.loads(made.log.read_text().splitlines()[0])["log"] == "begun\n"
    async with refused("FAILED_PRECONDITION", "json-file"):
        await cri.runtime.ReopenContainerLog(api.ReopenContainerLogRequest(container_id=made.container))
    # A pod that was taken over is a pod like any other.
    another = await start(cri, made.sandbox, container_config(name="another", log_path=""))
    assert made.address in await sh(cri, another, "ip -o addr show dev eth0")


@pytest.mark.every_engine
@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_pod_that_the_engine_loses_before_or_after_it_is_taken_over(
    start_server: Callable[..., Server],
    engine_api: DockerClient,
    folders: Path,
    snapshot: Callable[[], Snapshot],
    when: str,
) -> None:
    before = snapshot()
    made = await make(CRI_DOCKERD, engine_api, folders)

    def lose() -> None:
        for one in (made.container, made.sandbox):
            engine_api.api.remove_container(one, force=True)

    if when == "before":
        lose()
    async with taken_over(start_server, CRI_DOCKERD) as cri:
        if when == "after":
            await until(lambda: any(one.endswith(made.sandbox) for one in snapshot().namespaces))
            await asyncio.to_thread(lose)
            await answer(
                lambda: sandboxes(cri),
                lambda listed: made.sandbox in listed and listed[made.sandbox].state == api.SANDBOX_NOTREADY,
            )
        shown = (await sandboxes(cri))[made.sandbox]
        assert (shown.state, shown.metadata.name, shown.metadata.namespace) == (api.SANDBOX_NOTREADY, "web", "tests")
        assert (await sandbox_status(cri, made.sandbox)).state == api.SANDBOX_NOTREADY
        assert not await containers(cri)
        for _ in range(2):
            await remove_pod(cri, made.sandbox)
        assert made.sandbox not in await sandboxes(cri)
    assert snapshot().gained(before) == {}
    assert list(CRI_DOCKERD.checkpoints.iterdir()) == []


async def test_several_folders_are_adopted_and_nothing_else_in_them_is_touched(
    start_server: Callable[..., Server], engine_api: DockerClient, folders: Path
) -> None:
    in_tree = next(shim.values[0] for shim in SHIMS if shim.id == "in-tree")
    assert isinstance(in_tree, Shim)
    ids = {CRI_DOCKERD: "c1" * 32, in_tree: "c2" * 32}
    for shim, sandbox_id in ids.items():
        content = json.dumps({"version": "v1", "name": shim.root.name, "namespace": "tests", "data": {}})
        (shim.checkpoints / sandbox_id).write_text(content)
        (shim.checkpoints / "damaged").write_text("{")
        (shim.checkpoints / ".tmp-of-another").write_text("{")
    async with taken_over(start_server, *ids) as cri:
        listed = await sandboxes(cri)
        for shim, sandbox_id in ids.items():
            assert listed[sandbox_id].metadata.name == shim.root.name
            await remove_pod(cri, sandbox_id)
            assert {path.name for path in shim.checkpoints.iterdir()} == {"damaged", ".tmp-of-another"}


async def test_a_checkpoint_of_another_shim_that_cannot_be_removed_keeps_the_sandbox(
    start_server: Callable[..., Server], folders: Path
) -> None:
    sandbox_id = "c3" * 32
    content = json.dumps({"version": "v1", "name": "web", "namespace": "tests", "data": {}})
    (CRI_DOCKERD.checkpoints / sandbox_id).write_text(content)
    subprocess.run(["mount", "--bind", "-o", "ro", CRI_DOCKERD.checkpoints, CRI_DOCKERD.checkpoints], check=True)
    try:
        async with taken_over(start_server, CRI_DOCKERD) as cri:
            async with refused("FAILED_PRECONDITION", "Read-only"):
                await remove_pod(cri, sandbox_id)
            assert sandbox_id in await sandboxes(cri)
            subprocess.run(["umount", CRI_DOCKERD.checkpoints], check=True)
            await remove_pod(cri, sandbox_id)
            assert sandbox_id not in await sandboxes(cri)
    finally:
        subprocess.run(["umount", "-q", CRI_DOCKERD.checkpoints], check=False)
