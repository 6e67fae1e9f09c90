"""The least of an engine and of a CNI plugin with which a server works: nothing fails, and nothing is late."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import cni
from dockershim.server.config import Config
from tests.sim.server import sim_config, write_network
from tests.sim.world import JSON, Reply, SimWorld

INFO = {
    "ServerVersion": "28.5.1",
    "Driver": "overlay2",
    "DockerRootDir": "/var/lib/docker",
    "CgroupDriver": "systemd",
    "CgroupVersion": "2",
    "Runtimes": {"runc": {}},
    "DefaultRuntime": "runc",
    "Architecture": "x86_64",
    "KernelVersion": "6.12.0",
    "MemoryLimit": True,
    "SwapLimit": True,
    "CPUShares": True,
    "CPUSet": True,
    "CpuCfsQuota": True,
    "CpuCfsPeriod": True,
    "PidsLimit": True,
}
IMAGE = {
    "Id": "sha256:" + "1a" * 32,
    "RepoTags": ["busybox:1", "dockershim/pause:1"],
    "RepoDigests": [],
    "Size": 1,
    "Created": 1,
    "Config": {"User": ""},
}


class PlainEngine:
    """Containers by id. ``done`` has the calls that changed something."""

    def __init__(self) -> None:
        self.world: SimWorld
        self.containers: dict[str, dict[str, Any]] = {}
        self.done: list[str] = []
        self._listeners: list[asyncio.Queue[bytes]] = []

    async def request(self, method: str, path: str, params: Mapping[str, str], body: JSON | None) -> Reply:
        match method, path.strip("/").split("/"):
            case "GET", ["version"]:
                return Reply.of({"ApiVersion": "1.51", "MinAPIVersion": "1.24", "Version": "28.5.1", "Arch": "amd64"})
            case "GET", ["_ping"]:
                return Reply(chunks=b"OK")
            case "GET", ["info"]:
                return Reply.of(INFO)
            case "GET", ["events"]:
                return Reply(chunks=self._events())
            case "GET", ["images", "json"]:
                return Reply.of([IMAGE])
            case "GET", ["images", *_, "json"]:
                return Reply.of(IMAGE)
            case "GET", ["containers", "json"]:
                return Reply.of([_summary(one) for one in self.containers.values()])
            case "POST", ["containers", "create"]:
                return self._create(params["name"], body)
            case "POST", ["containers", name, "rename"]:
                self.containers[name]["Name"] = f"/{params['name']}"
                self._tell("rename", name)
                return Reply(204)
            case _, ["containers", name, *what]:
                named = (one for one, there in self.containers.items() if there["Name"] == f"/{name}")
                return self._act(next(named, name), what[0] if what else "delete")
        return Reply.error(404, f"{method} {path}")

    def _create(self, name: str, body: JSON) -> Reply:
        made = f"{len(self.done) + 1:064x}"
        self.containers[made] = {
            "Id": made,
            "Name": f"/{name}",
            "Created": "2026-01-02T03:04:05Z",
            "Image": IMAGE["Id"],
            "Config": body,
            "HostConfig": body["HostConfig"],
            "State": {"Status": "created", "Pid": 0},
            "NetworkSettings": {},
        }
        self._tell("create", made)
        return Reply.of({"Id": made}, 201)

    def _act(self, container_id: str, what: str) -> Reply:
        container = self.containers.get(container_id)
        if container is None:
            return Reply.error(404, f"No such container: {container_id}")
        if what == "json":
            return Reply.of(container)
        kernel, state = self.world.kernel, container["State"]
        if what == "start":
            netns = Path(f"/var/run/docker/netns/{container_id[:12]}")
            namespace = kernel.namespace(netns) if container["HostConfig"]["NetworkMode"] == "none" else None
            container["NetworkSettings"] = {"SandboxKey": str(netns) if namespace else ""}
            state.update(Status="running", Pid=kernel.process(container_id, namespace))
        elif state["Status"] == "running":
            kernel.end(state["Pid"])
            state.update(Status="exited", Pid=0, ExitCode=137, FinishedAt="2026-01-02T03:04:06Z")
            self._tell("die", container_id)
        if what == "delete":
            del self.containers[container_id]
            self._tell("destroy", container_id)
        else:
            self._tell(what, container_id)
        return Reply(204)

    def lose_power(self) -> None:
        """To be called before the power cut: no container runs any more."""
        for container in self.containers.values():
            if container["State"]["Status"] == "running":
                container["State"].update(Status="exited", Pid=0, ExitCode=255, FinishedAt="2026-01-02T03:04:06Z")
                container["NetworkSettings"] = {}

    def _tell(self, action: str, container_id: str) -> None:
        self.done.append(f"{action} {container_id}")
        labels = self.containers[container_id]["Config"]["Labels"] if container_id in self.containers else {}
        event = {
            "Type": "container",
            "Action": action,
            "Actor": {"ID": container_id, "Attributes": labels},
            "timeNano": int(self.world.simulation.wall() * 1e9),
        }
        for listener in self._listeners:
            listener.put_nowait(json.dumps(event).encode() + b"\n")

    async def _events(self) -> AsyncIterator[bytes]:
        queue: asyncio.Queue[bytes] = asyncio.Queue()
        self._listeners.append(queue)
        try:
            while True:
                yield await queue.get()
        finally:
            self._listeners.remove(queue)


def _summary(container: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "Id": container["Id"],
        "Names": [container["Name"]],
        "Labels": container["Config"]["Labels"],
        "State": container["State"]["Status"],
        "Created": 1,
        "Image": IMAGE["Id"],
        "ImageID": IMAGE["Id"],
        "HostConfig": {"NetworkMode": container["HostConfig"]["NetworkMode"]},
    }


class PlainPlugins:
    """Each ADD gives the address 10.1.0.2."""

    def __init__(self) -> None:
        self.commands: list[str] = []

    async def run(self, invocation: cni.Invocation) -> cni.Completion:
        self.commands.append(invocation.command)
        await asyncio.sleep(0.05)
        answer: dict[str, Any] = {}
        if invocation.command == "ADD":
            answer = {"cniVersion": "1.0.0", "ips": [{"address": "10.1.0.2/24"}]}
        elif invocation.command == "VERSION":
            answer = {"cniVersion": "1.0.0", "supportedVersions": ["1.0.0"]}
        return cni.Completion(0, json.dumps(answer).encode(), b"")


def plain_config(folder: Path) -> Config:
    """A configuration with a CNI network whose plugin is there."""
    config = sim_config(folder, pod_infra_container_image="busybox:1", disk_usage_interval=3600.0)
    network = {"cniVersion": "1.0.0", "name": "pods", "plugins": [{"type": "plain"}]}
    write_network(config, json.dumps(network), "plain")
    return config
