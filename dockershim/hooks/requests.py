"""The requests that hook servers get, and what their answers change. Pure.

A request of the hooks' API describes a pod or container (``told``). Each answer changes that request, and the next hook
server gets the result. The differences between the first and the last one (``merged``) go into the CRI request.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from google.protobuf.json_format import ParseDict, ParseError

from dockershim.api.cri.v1 import api_pb2 as cri
from dockershim.api.hooks.v1alpha1 import api_pb2 as hooks
from dockershim.errors import InvalidArgument
from dockershim.state import pods
from dockershim.translate.container import to_env
from dockershim.translate.names import SandboxName
from dockershim.translate.records import ContainerRecord, to_current_resources
from dockershim.translate.sandbox import check_cgroup_parent

#: A pod with this label (koordinator's documentation also says annotation) has no hooks.
SKIP: Final = ("runtimeproxy.koordinator.sh/skip-hookserver", "true")
#: Bytes that Kubernetes allows for all annotations of a pod.
_LONGEST_MAP: Final = 256 * 1024
#: The kernel's MAX_ARG_STRLEN: a container with a longer variable cannot start.
_LONGEST_VARIABLE: Final = 128 * 1024 - 1
_LOWEST_OOM_SCORE, _HIGHEST_OOM_SCORE = -1000, 1000
_SET_ABOVE_ZERO: Final = ("cpu_period", "cpu_shares", "memory_limit_in_bytes", "memory_swap_limit_in_bytes")
_CPUSETS: Final = ("cpuset_cpus", "cpuset_mems")
_PLAIN_FIELDS: Final = (*_SET_ABOVE_ZERO, "cpu_quota", "oom_score_adj", *_CPUSETS)


@dataclass(frozen=True, slots=True)
class Pod:
    """What hook servers learn about an existing pod. Overhead and resources are None if the kubelet gave none."""

    name: SandboxName
    runtime_handler: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    cgroup_parent: str = ""
    overhead: hooks.LinuxContainerResources | None = None
    resources: hooks.LinuxContainerResources | None = None


def skips_hooks(labels: Mapping[str, str], annotations: Mapping[str, str]) -> bool:
    """Whether a pod opts out of hooks."""
    key, value = SKIP
    return labels.get(key) == value or annotations.get(key) == value


def to_pod(known: pods.Pod) -> Pod:
    """An existing pod."""
    limits = known.limits
    return Pod(
        known.name,
        known.runtime_handler,
        known.labels,
        known.annotations,
        known.cgroup_parent,
        _json_resources(limits.get("overhead")),
        _json_resources(limits.get("resources")),
    )


def _json_resources(fields: Mapping[str, Any] | None) -> hooks.LinuxContainerResources | None:
    if fields is None:
        return None
    try:
        return ParseDict(dict(fields), hooks.LinuxContainerResources(), ignore_unknown_fields=True)
    except ParseError:
        return None


# -- Requests to hook servers.


def to_pod_request(pod: Pod) -> hooks.PodSandboxHookRequest:
    """PodSandboxHookRequest of an existing pod."""
    return hooks.PodSandboxHookRequest(
        pod_meta=_pod_meta(pod.name),
        runtime_handler=pod.runtime_handler,
        labels=pod.labels,
        annotations=pod.annotations,
        cgroup_parent=pod.cgroup_parent,
        overhead=pod.overhead,
        resources=pod.resources,
    )


def to_new_pod_request(request: cri.RunPodSandboxRequest) -> hooks.PodSandboxHookRequest:
    """PodSandboxHookRequest of a pod that RunPodSandbox is about to make."""
    config, metadata = request.config, request.config.metadata
    linux = config.linux
    pod = Pod(
        SandboxName(metadata.name, metadata.namespace, metadata.uid, metadata.attempt),
        request.runtime_handler,
        config.labels,
        config.annotations,
        linux.cgroup_parent,
        _resources(linux.overhead) if linux.HasField("overhead") else None,
        _resources(linux.resources) if linux.HasField("resources") else None,
    )
    return to_pod_request(pod)


def to_new_container_request(request: cri.CreateContainerRequest, pod: Pod) -> hooks.ContainerResourceHookRequest:
    """ContainerResourceHookRequest of a container that is about to be made; it has no id yet.

    Raises InvalidArgument for variables that the engine does not take.
    """
    config = request.config
    query = _of_pod(pod)
    query.container_meta.name = config.metadata.name
    query.container_meta.attempt = config.metadata.attempt
    query.container_annotations.update(config.annotations)
    query.container_resources.CopyFrom(_resources(config.linux.resources))
    query.pod_cgroup_parent = pod.cgroup_parent or request.sandbox_config.linux.cgroup_parent
    query.container_envs.update(_variables(to_env(config)))
    return query


def to_container_request(record: ContainerRecord, pod: Pod) -> hooks.ContainerResourceHookRequest:
    """ContainerResourceHookRequest of an existing container, with its current resources."""
    query = _of_pod(pod)
    query.container_meta.name = record.name.name
    query.container_meta.attempt = record.name.attempt
    query.container_meta.id = record.id
    query.container_annotations.update(record.annotations)
    query.container_resources.CopyFrom(_resources(to_current_resources(record)))
    query.pod_cgroup_parent = record.extra.cgroup_parent or record.host_config.get("CgroupParent") or ""
    query.container_envs.update(_variables(record.envs))
    return query


def to_update_request(
    record: ContainerRecord, pod: Pod, resources: cri.LinuxContainerResources
) -> hooks.ContainerResourceHookRequest:
    """ContainerResourceHookRequest of a resource update: the current resources, with those that the CRI request sets,
    except ``oom_score_adj`` and ``hugepage_limits``."""
    query = to_container_request(record, pod)
    into = query.container_resources
    _merge_above_zero(into, resources)
    for name in _CPUSETS:
        if value := getattr(resources, name):
            setattr(into, name, value)
    return query


def _pod_meta(name: SandboxName) -> hooks.PodSandboxMetadata:
    return hooks.PodSandboxMetadata(name=name.name, uid=name.uid, namespace=name.namespace, attempt=name.attempt)


def _of_pod(pod: Pod) -> hooks.ContainerResourceHookRequest:
    return hooks.ContainerResourceHookRequest(
        pod_meta=_pod_meta(pod.name),
        pod_resources=pod.resources,
        pod_annotations=pod.annotations,
        pod_labels=pod.labels,
    )


def _variables(envs: tuple[str, ...] | list[str]) -> dict[str, str]:
    return {key: value for key, _, value in (env.partition("=") for env in envs)}


def _resources(resources: cri.LinuxContainerResources) -> hooks.LinuxContainerResources:
    """The two messages have the same fields with the same numbers."""
    return hooks.LinuxContainerResources.FromString(resources.SerializeToString())


def _cri_resources(resources: hooks.LinuxContainerResources) -> cri.LinuxContainerResources:
    return cri.LinuxContainerResources.FromString(resources.SerializeToString())


# -- Answers of hook servers.


def merge_pod(query: hooks.PodSandboxHookRequest, answer: hooks.PodSandboxHookResponse) -> hooks.PodSandboxHookRequest:
    """The request ``query`` with the changes of ``answer``."""
    merged = hooks.PodSandboxHookRequest()
    merged.CopyFrom(query)
    merged.labels.update(answer.labels)
    merged.annotations.update(answer.annotations)
    merged.cgroup_parent = answer.cgroup_parent or query.cgroup_parent
    if answer.HasField("resources"):
        _merge_resources(merged.resources, answer.resources)
    return merged


def merge_container(
    query: hooks.ContainerResourceHookRequest, answer: hooks.ContainerResourceHookResponse
) -> hooks.ContainerResourceHookRequest:
    """The request ``query`` with the changes of ``answer``."""
    merged = hooks.ContainerResourceHookRequest()
    merged.CopyFrom(query)
    merged.container_annotations.update(answer.container_annotations)
    merged.pod_cgroup_parent = answer.pod_cgroup_parent or query.pod_cgroup_parent
    if answer.HasField("container_resources"):
        _merge_resources(merged.container_resources, answer.container_resources)
    if answer.container_envs:
        merged.container_envs.clear()
        merged.container_envs.update(answer.container_envs)
    return merged


def _merge_resources(into: hooks.LinuxContainerResources, answer: hooks.LinuxContainerResources) -> None:
    """koord-runtime-proxy's rule: an answer with resources always sets ``cpuset_cpus``, ``cpuset_mems`` and
    ``oom_score_adj``; of the other fields it sets only those that change."""
    _merge_above_zero(into, answer)
    for name in _CPUSETS:
        setattr(into, name, getattr(answer, name))
    if _LOWEST_OOM_SCORE <= answer.oom_score_adj <= _HIGHEST_OOM_SCORE:
        into.oom_score_adj = answer.oom_score_adj


def _merge_above_zero(
    into: hooks.LinuxContainerResources, change: hooks.LinuxContainerResources | cri.LinuxContainerResources
) -> None:
    for name in _SET_ABOVE_ZERO:
        if (value := getattr(change, name)) > 0:
            setattr(into, name, value)
    if change.cpu_quota != 0:
        into.cpu_quota = change.cpu_quota
    into.unified.update(change.unified)


def check_pod(query: hooks.PodSandboxHookRequest, merged: hooks.PodSandboxHookRequest, cgroup_driver: str) -> None:
    """Rules that apply only to changes by a hook server. Raises InvalidArgument naming the field."""
    _check_map(query.labels, merged.labels, "labels")
    _check_map(query.annotations, merged.annotations, "annotations")
    if merged.cgroup_parent != query.cgroup_parent:
        check_cgroup_parent(merged.cgroup_parent, cgroup_driver, "cgroup_parent")


def check_container(
    query: hooks.ContainerResourceHookRequest, merged: hooks.ContainerResourceHookRequest, cgroup_driver: str
) -> None:
    """Rules that apply only to changes by a hook server. Raises InvalidArgument naming the field."""
    _check_map(query.container_annotations, merged.container_annotations, "container_annotations")
    if merged.pod_cgroup_parent != query.pod_cgroup_parent:
        check_cgroup_parent(merged.pod_cgroup_parent, cgroup_driver, "pod_cgroup_parent")
    for key, value in merged.container_envs.items():
        if len(key.encode()) + 1 + len(value.encode()) > _LONGEST_VARIABLE and query.container_envs.get(key) != value:
            raise InvalidArgument(f"container_envs: {key!r:.80} is longer than the kernel allows")


def _check_map(query: Mapping[str, str], merged: Mapping[str, str], name: str) -> None:
    if merged == query:
        return
    if "" in merged and "" not in query:
        raise InvalidArgument(f"{name}: keys must not be empty")
    if sum(len(key.encode()) + len(value.encode()) for key, value in merged.items()) > _LONGEST_MAP:
        raise InvalidArgument(f"{name}: must have at most {_LONGEST_MAP} bytes")


# -- The changed CRI requests.


def change_run_pod_sandbox(
    request: cri.RunPodSandboxRequest, query: hooks.PodSandboxHookRequest, merged: hooks.PodSandboxHookRequest
) -> cri.RunPodSandboxRequest:
    """RunPodSandboxRequest with the differences between ``query`` and ``merged``."""
    changed = cri.RunPodSandboxRequest()
    changed.CopyFrom(request)
    changed.config.labels.update(merged.labels)
    changed.config.annotations.update(merged.annotations)
    if merged.cgroup_parent != query.cgroup_parent:
        changed.config.linux.cgroup_parent = merged.cgroup_parent
    if merged.resources != query.resources:
        changed.config.linux.resources.CopyFrom(_cri_resources(merged.resources))
    return changed


def change_create_container(
    request: cri.CreateContainerRequest,
    query: hooks.ContainerResourceHookRequest,
    merged: hooks.ContainerResourceHookRequest,
) -> cri.CreateContainerRequest:
    """CreateContainerRequest with the differences between ``query`` and ``merged``, and the latter's cgroup parent."""
    changed = cri.CreateContainerRequest()
    changed.CopyFrom(request)
    config = changed.config
    config.annotations.update(merged.container_annotations)
    if merged.pod_cgroup_parent != request.sandbox_config.linux.cgroup_parent:
        changed.sandbox_config.linux.cgroup_parent = merged.pod_cgroup_parent
    if merged.container_resources != query.container_resources:
        config.linux.resources.CopyFrom(_cri_resources(merged.container_resources))
    if merged.container_envs != query.container_envs:
        # In their old order, new ones at the end: a variable may refer to an earlier one.
        before = [env.key for env in config.envs if env.key in merged.container_envs]
        del config.envs[:]
        for key in dict.fromkeys((*before, *sorted(merged.container_envs))):
            config.envs.add(key=key, value=merged.container_envs[key].encode())
    return changed


def change_update(
    resources: cri.LinuxContainerResources,
    query: hooks.ContainerResourceHookRequest,
    merged: hooks.ContainerResourceHookRequest,
) -> cri.LinuxContainerResources:
    """The resources of UpdateContainerResourcesRequest with the differences between ``query`` and ``merged``.

    Other resources need not be repeated: an update does not change what it does not name.
    """
    changed = cri.LinuxContainerResources()
    changed.CopyFrom(resources)
    before, after = query.container_resources, merged.container_resources
    for name in _PLAIN_FIELDS:
        if getattr(after, name) != getattr(before, name):
            setattr(changed, name, getattr(after, name))
    changed.unified.update({key: value for key, value in after.unified.items() if before.unified.get(key) != value})
    return changed
