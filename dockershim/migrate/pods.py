"""What a CRI server reports of pods and containers, and whether another one reports the same."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Final

import grpc
import msgspec

from dockershim.api.cri.v1 import api_pb2 as cri
from dockershim.changes.disk import ChangeError
from dockershim.server.cri_calls import call, connect, reason

#: Seconds: of one call, of all, and for which calls are made again that a busy machine has not answered in time.
_DEADLINE: Final = 15.0
_ALL_CALLS: Final = 120.0
_PATIENCE: Final = 60.0
_PAUSE: Final = 1.0
_PASSING: Final = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
#: Nanoseconds. A container that was restarted and is younger may be restarted again at any time, by itself: the
#: kubelet takes one that runs for ten minutes for a healthy one.
_RESTARTING: Final = 600 * 10**9
_HASH: Final = "io.kubernetes.container.hash"


class Pod(msgspec.Struct, frozen=True):
    """A sandbox that is ready. ``name`` is its namespace and name; ``addresses`` are empty in the host's network."""

    name: str
    uid: str
    attempt: int
    addresses: tuple[str, ...] = ()


class Container(msgspec.Struct, frozen=True):
    """A container. ``hash`` is the kubelet's, by which it sees that a container has to be replaced."""

    name: str
    pod: str
    attempt: int
    created: int
    runs: bool
    hash: str = ""


class Pods(msgspec.Struct, frozen=True):
    """The ready sandboxes and all containers, by their ids; ``time`` in nanoseconds since 1970."""

    time: int
    pods: dict[str, Pod] = {}
    containers: dict[str, Container] = {}

    def __str__(self) -> str:
        running = sum(1 for one in self.containers.values() if one.runs)
        return f"{len(self.pods)} pods and {running} running containers"


def read(
    endpoint: str, *, clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep
) -> Pods:
    """Ask the server on ``unix:///path``, again for a minute while it or its engine is busy. Raises ChangeError."""
    ends = clock() + _PATIENCE
    while True:
        try:
            return _read(endpoint)
        except grpc.RpcError as error:
            if error.code() not in _PASSING or clock() > ends:
                raise ChangeError(f"{endpoint}: the pods cannot be read: {reason(error)}") from error
        sleep(_PAUSE)


def _read(endpoint: str) -> Pods:
    """Raises grpc.RpcError."""
    ends = time.monotonic() + _ALL_CALLS

    def left() -> float:
        return max(0.1, min(_DEADLINE, ends - time.monotonic()))

    with connect(endpoint) as channel:
        sandboxes = call(channel, cri.ListPodSandboxRequest(), cri.ListPodSandboxResponse, left()).items
        containers = call(channel, cri.ListContainersRequest(), cri.ListContainersResponse, left()).containers
        pods = {}
        for sandbox in sandboxes:
            if sandbox.state == cri.SANDBOX_READY:
                request = cri.PodSandboxStatusRequest(pod_sandbox_id=sandbox.id)
                status = call(channel, request, cri.PodSandboxStatusResponse, left()).status
                pods[sandbox.id] = _pod(sandbox.metadata, status.network)
    return Pods(time.time_ns(), pods, {one.id: _container(one) for one in containers})


def _pod(metadata: cri.PodSandboxMetadata, network: cri.PodSandboxNetworkStatus) -> Pod:
    addresses = (network.ip, *(one.ip for one in network.additional_ips))
    return Pod(f"{metadata.namespace}/{metadata.name}", metadata.uid, metadata.attempt, tuple(filter(None, addresses)))


def _container(container: cri.Container) -> Container:
    return Container(
        name=container.metadata.name,
        pod=container.pod_sandbox_id,
        attempt=container.metadata.attempt,
        created=container.created_at,
        runs=container.state == cri.CONTAINER_RUNNING,
        hash=container.annotations.get(_HASH, ""),
    )


def differences(before: Pods, after: Pods) -> list[str]:
    """A line for each pod and container that is not as it was. What has ended by itself, or is new, is none of them."""
    return [*_of_pods(before, after), *_of_containers(before, after)]


def _of_pods(before: Pods, after: Pods) -> Iterator[str]:
    for identity, pod in before.pods.items():
        now = after.pods.get(identity)
        if now is None:
            yield f"pod {pod.name} ({identity[:13]}) was ready, and is not any more"
        elif (now.name, now.uid, now.attempt) != (pod.name, pod.uid, pod.attempt):
            yield f"pod {pod.name} ({identity[:13]}), attempt {pod.attempt}, is {now.name}, attempt {now.attempt}"
        # cri-dockerd reports one address of a pod that has two, unless it has a flag for it.
        elif set(pod.addresses) ^ set(now.addresses) and not _has_less(pod, now) and not _has_less(now, pod):
            was, is_now = (", ".join(one.addresses) or "no address" for one in (pod, now))
            yield f"pod {pod.name} ({identity[:13]}) had {was}, and has {is_now}"


def _has_less(one: Pod, other: Pod) -> bool:
    return bool(one.addresses) and set(one.addresses) < set(other.addresses)


def _of_containers(before: Pods, after: Pods) -> Iterator[str]:
    newest: dict[tuple[str, str], int] = {}
    for one in after.containers.values():
        newest[one.pod, one.name] = max(one.attempt, newest.get((one.pod, one.name), 0))
    for identity, container in before.containers.items():
        pod = before.pods.get(container.pod)
        if not container.runs or pod is None or container.pod not in after.pods:
            continue  # it does not run, or its pod is a difference already
        what = f"container {container.name} of pod {pod.name} ({identity[:13]})"
        now = after.containers.get(identity)
        if container.attempt and before.time - container.created < _RESTARTING:
            continue
        if newest.get((container.pod, container.name), 0) > container.attempt:
            yield f"{what} was restarted"
        elif now is None:
            yield f"{what} ran, and does not exist any more"
        elif (now.name, now.pod, now.attempt) != (container.name, container.pod, container.attempt):
            yield f"{what}, attempt {container.attempt}, is {now.name} of pod {now.pod[:13]}, attempt {now.attempt}"
        elif now.hash != container.hash:
            yield f"{what} has another hash, so the kubelet would replace it"
