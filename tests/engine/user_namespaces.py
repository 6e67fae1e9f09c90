"""Pods and containers with a user namespace."""

from __future__ import annotations

from typing import Any

from dockershim.api.cri.v1 import api_pb2 as api
from tests.engine.pods import container_config, sandbox_config


def mapping(host_id: int, length: int = 65536, container_id: int = 0) -> api.IDMapping:
    return api.IDMapping(host_id=host_id, container_id=container_id, length=length)


#: A kubelet chooses its ranges from all that the kernel has.
A, B = mapping(200_000), mapping(2**32 - 2 * 65536)


def users(uids: list[api.IDMapping], gids: list[api.IDMapping] | None = None, **modes: Any) -> api.NamespaceOption:
    asked = api.UserNamespace(mode=api.POD, uids=uids, gids=uids if gids is None else gids)
    return api.NamespaceOption(userns_options=asked, **modes)


def pod_of(options: api.NamespaceOption, **fields: Any) -> api.PodSandboxConfig:
    context = api.LinuxSandboxSecurityContext(namespace_options=options, privileged=True)
    return sandbox_config(linux=api.LinuxPodSandboxConfig(security_context=context, **fields))


def of(options: api.NamespaceOption, command: str = "exec sleep 1000", **fields: Any) -> api.ContainerConfig:
    context = {name: fields.pop(name) for name in ("run_as_user", "run_as_group", "privileged") if name in fields}
    made = api.LinuxContainerSecurityContext(namespace_options=options, **context)
    return container_config(command, linux=api.LinuxContainerConfig(security_context=made), **fields)
