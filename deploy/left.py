"""Looks for what is left of a removed pod: in the CRI, in the engine and among the files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from docker import DockerClient

from deploy.cri import CRI
from deploy.pod import Pod
from deploy.terminal import say
from dockershim.api.cri.v1 import api_pb2 as cri
from dockershim.network.netns import Pins


@dataclass(frozen=True, slots=True)
class Place:
    """A server's endpoint, and the folders of its state: ``root`` survives a reboot, ``state`` does not."""

    endpoint: str
    root: Path
    state: Path


def left_behind(client: DockerClient, connection: CRI, place: Place, pod: Pod) -> list[str]:
    """Look everywhere, and print what is looked for. Returns what was found, one line each."""
    found: list[str] = []
    for what, things in _look(client, connection, place, pod):
        say(f"     {what}: {'; '.join(things) or 'none'}")
        found += [f"{what}: {thing}" for thing in things]
    return found


def _look(client: DockerClient, connection: CRI, place: Place, pod: Pod) -> Iterator[tuple[str, list[str]]]:
    pods = connection.call("ListPodSandbox", cri.ListPodSandboxRequest()).items
    yield "pod in ListPodSandbox", [one.id for one in pods if one.metadata.uid == pod.uid]
    containers = connection.call("ListContainers", cri.ListContainersRequest()).containers
    yield "container in ListContainers", [one.id for one in containers if one.pod_sandbox_id == pod.sandbox_id]
    names = [one.name for one in client.containers.list(all=True, ignore_removed=True)]
    yield "container on the engine", [name for name in names if pod.uid in name]
    yield "endpoint in the engine's networks", _networks(client, pod.sandbox_id)
    if not pod.image_was_there:
        yield "image", [image.id for image in client.images.list(all=True) if image.id == pod.image_id]
    yield "checkpoint", _existing(place.root / "sandbox" / pod.sandbox_id)
    yield "network namespace", _existing(Pins(place.state).path(pod.sandbox_id))
    yield "log", [str(path) for path in pod.logs.iterdir()] if pod.logs.exists() else []


def _networks(client: DockerClient, sandbox_id: str) -> list[str]:
    networks = client.networks.list(greedy=True)
    return [one.name for one in networks if sandbox_id in (one.attrs.get("Containers") or {})]


def _existing(path: Path) -> list[str]:
    return [str(path)] if path.exists() else []
