"""The engine's state now, as the CRI has to show it, for comparisons with the inventory."""

from __future__ import annotations

import contextlib
import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import docker.errors
from docker import DockerClient

from dockershim.api.cri.v1 import api_pb2 as api
from dockershim.translate.image import ImageConfig, ImageRecord, to_image_records
from dockershim.translate.labels import CONTAINER_TYPE, SANDBOX_TYPE, TYPE_LABEL
from dockershim.translate.records import (
    ContainerRecord,
    SandboxRecord,
    read_container,
    read_sandbox,
    to_cri_container,
    to_cri_container_status,
)
from tests.cri_client import CRI

CHECKPOINTS = Path("/var/lib/dockershim/sandbox")


@dataclass(frozen=True, slots=True)
class Truth:
    """Sandboxes and containers by id. ``lost`` are the sandboxes of which only a checkpoint is left."""

    sandboxes: dict[str, SandboxRecord]
    containers: dict[str, ContainerRecord]
    images: dict[str, ImageRecord]
    lost: frozenset[str]


def truth(engine: DockerClient) -> Truth:
    """Read it now, with one list and an inspect of each container."""
    sandboxes: dict[str, SandboxRecord] = {}
    containers: dict[str, ContainerRecord] = {}
    for item in engine.api.containers(all=True, filters={"label": TYPE_LABEL}):
        with contextlib.suppress(docker.errors.NotFound):
            inspect = engine.api.inspect_container(item["Id"])
            kind = inspect["Config"]["Labels"][TYPE_LABEL]
            if kind == SANDBOX_TYPE and (sandbox := read_sandbox(inspect)) is not None:
                sandboxes[sandbox.id] = sandbox
            if kind == CONTAINER_TYPE and (container := read_container(inspect)) is not None:
                containers[container.id] = _with_score(container)
    checkpoints = {path.name for path in CHECKPOINTS.glob("?" * 64)}
    listed = engine.api.images()
    configs = dict.fromkeys((one["Id"] for one in listed), ImageConfig("", 0))
    images = {image.id: image for image in to_image_records(listed, configs)}
    return Truth(sandboxes, containers, images, frozenset(checkpoints - sandboxes.keys()))


def _with_score(record: ContainerRecord) -> ContainerRecord:
    with contextlib.suppress(OSError):
        score = int(Path("/proc", str(record.pid or "none"), "oom_score_adj").read_text())
        return dataclasses.replace(record, host_config={**record.host_config, "OomScoreAdj": score})
    return record


async def differences(cri: CRI, real: Truth) -> list[str]:
    """The differences between our answers and the engine, in words."""
    found = []
    listed = {one.id: one for one in (await cri.runtime.ListContainers(api.ListContainersRequest())).containers}
    if listed.keys() != real.containers.keys():
        found.append(f"containers {_ids(listed)}, the engine has {_ids(real.containers)}")
    for one in listed.keys() & real.containers.keys():
        found += _differs("list", listed[one], to_cri_container(real.containers[one]))
        status = (await cri.runtime.ContainerStatus(api.ContainerStatusRequest(container_id=one))).status
        found += _differs("status", status, _status(real, one, status))
    pods = {one.id: one for one in (await cri.runtime.ListPodSandbox(api.ListPodSandboxRequest())).items}
    if pods.keys() != real.sandboxes.keys() | real.lost:
        found.append(f"sandboxes {_ids(pods)}, the engine has {_ids(real.sandboxes)}, checkpoints {_ids(real.lost)}")
    for one in pods.keys() & real.sandboxes.keys():
        found += await _sandbox(cri, pods[one], real)
    return found


async def _sandbox(cri: CRI, listed: api.PodSandbox, real: Truth) -> list[str]:
    record = real.sandboxes[listed.id]
    expected = api.SANDBOX_READY if record.running else api.SANDBOX_NOTREADY
    found = [] if listed.state == expected else [f"sandbox {listed.id} is listed with state {listed.state}"]
    answer = await cri.runtime.PodSandboxStatus(api.PodSandboxStatusRequest(pod_sandbox_id=listed.id))
    if answer.status.state != expected:
        found.append(f"sandbox {listed.id} has state {answer.status.state}")
    if answer.status.metadata.name != record.name.name or dict(answer.status.labels) != dict(record.labels):
        found.append(f"sandbox {listed.id} has other metadata: {answer.status}")
    within = {one.id for one in real.containers.values() if one.sandbox_id == listed.id}
    if {one.id for one in answer.containers_statuses} != within:
        found.append(f"sandbox {listed.id} has other containers: {_ids(within)}")
    for status in answer.containers_statuses:
        if status.id in within:
            found += _differs("in its pod", status, _status(real, status.id, status))
    return found


def _status(real: Truth, container_id: str, shown: api.ContainerStatus) -> api.ContainerStatus:
    """The state to show. A container that ran and that another program then failed to start again gets a new exit code
    and message from the engine, without an event or a change in a list; only these may be out of date. The user is in
    no inspect; tests of its own compare it with the process."""
    record = real.containers[container_id]
    status = to_cri_container_status(record, real.images.get(record.image_id))
    if record.started_at and record.error and record.state == api.CONTAINER_EXITED == shown.state:
        status.exit_code, status.message, status.reason = shown.exit_code, shown.message, shown.reason
    if shown.HasField("user"):
        status.user.CopyFrom(shown.user)
    return status


def _differs(what: str, shown: Any, expected: Any) -> list[str]:
    return [] if shown == expected else [f"container {shown.id}, {what}:\n{shown}\n-- the engine has:\n{expected}"]


def _ids(ids: Any) -> list[str]:
    return sorted(one[:12] for one in ids)
