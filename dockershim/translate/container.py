"""Converts ContainerConfig to the engine's JSON of an application container."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dockershim.api.cri.v1 import api_pb2 as cri
from dockershim.errors import InvalidArgument
from dockershim.translate.accounts import Account
from dockershim.translate.capabilities import Capabilities
from dockershim.translate.cdi import NO_EDITS, Edits, cdi_names, to_device_requests, with_edits
from dockershim.translate.cgroup_files import specify
from dockershim.translate.checks import check_enums, check_text, reject, require
from dockershim.translate.labels import (
    CONTAINER_TYPE,
    LOG_PATH_LABEL,
    SANDBOX_ID_LABEL,
    TYPE_LABEL,
    ContainerExtra,
    to_engine_labels,
)
from dockershim.translate.mounts import (
    check_mounts,
    to_engine_binds,
    to_engine_devices,
    to_engine_mounts,
    with_mapped_ids,
)
from dockershim.translate.names import SandboxName, kept_metadata
from dockershim.translate.resources import check_resources, to_cgroup_files, to_engine_resources, to_oom_score
from dockershim.translate.sandbox import lost_cgroup_parent, to_cgroup_parent, uts_sysctls
from dockershim.translate.security import (
    to_capabilities,
    to_container_namespaces,
    to_group_add,
    to_security_opt,
    to_user,
)
from dockershim.translate.signals import to_engine_signal
from dockershim.translate.user_namespace import ANNOTATION, asked_user_namespace


@dataclass(frozen=True, slots=True)
class EngineLog:
    """Limits of the engine's json-files, for a container whose CRI log is a separate file."""

    max_size: str
    max_files: int


def check_container(config: cri.ContainerConfig, sandbox_config: cri.PodSandboxConfig, features: Capabilities) -> None:
    """Raises InvalidArgument or Unsupported naming the field."""
    for message, name in ((config, "config"), (sandbox_config, "sandbox_config")):
        check_enums(message, name)
    require(config.metadata.name, "config.metadata.name")
    check_text(config.metadata.name, "config.metadata.name")
    require(config.image.image, "config.image.image")
    features.check_handler(config.image.runtime_handler, "config.image.runtime_handler")
    reject(config.HasField("windows"), "config.windows", "not supported by a Linux runtime")
    security = config.linux.security_context
    reject(
        security.capabilities.add_ambient_capabilities,
        "config.linux.security_context.capabilities.add_ambient_capabilities",
        "not supported by Docker Engine",
    )
    if security.privileged and not sandbox_config.linux.security_context.privileged:
        raise InvalidArgument("config.linux.security_context.privileged: the sandbox must be privileged, too")
    if config.working_dir and not config.working_dir.startswith("/"):
        raise InvalidArgument(f"config.working_dir: {config.working_dir!r} must be an absolute path")
    check_mounts(config.mounts, features)
    check_resources(config.linux.resources, "config.linux.resources")
    _check_classes(config, sandbox_config)
    log_path(config, sandbox_config)


def _check_classes(config: cri.ContainerConfig, sandbox_config: cri.PodSandboxConfig) -> None:
    """Refuse classes of cache (RDT) and of disk access that other runtimes read from annotations, also with their
    refusal where the node has no such classes. Of several the narrowest counts; an empty one means none.
    """
    name = config.metadata.name
    for kind in ("rdt", "blockio"):
        pods = f"{kind}.resources.beta.kubernetes.io"
        for given, where, key in (
            (config.annotations, "config", f"io.kubernetes.cri.{kind}-class"),
            (sandbox_config.annotations, "sandbox_config", f"{pods}/container.{name}"),
            (sandbox_config.annotations, "sandbox_config", f"{pods}/pod"),
        ):
            if key in given:
                reject(given[key], f"{where}.annotations[{key}]", "not supported by Docker Engine; remove it")
                break


def log_path(config: cri.ContainerConfig, sandbox_config: cri.PodSandboxConfig) -> str:
    """log_directory/log_path; empty if the caller wants no log.

    Raises InvalidArgument if it would leave the directory.
    """
    if not config.log_path or not sandbox_config.log_directory:
        return ""
    check_text(config.log_path, "config.log_path")
    directory = posixpath.normpath(sandbox_config.log_directory)
    path = posixpath.normpath(posixpath.join(directory, config.log_path))
    if not path.startswith(directory.rstrip("/") + "/"):
        raise InvalidArgument(f"config.log_path: {config.log_path!r} must be inside the log directory")
    return path


def to_env(config: cri.ContainerConfig) -> list[str]:
    """Config.Env."""
    result = []
    for env in config.envs:
        if not env.key or "=" in env.key:
            raise InvalidArgument(f"config.envs: {env.key!r} is not a valid name of a variable")
        try:
            result.append(f"{env.key}={env.value.decode()}")
        except UnicodeDecodeError as error:
            raise InvalidArgument(f"config.envs[{env.key}]: must be UTF-8") from error
        if "\0" in result[-1]:
            raise InvalidArgument(f"config.envs[{env.key}]: must not contain NUL")
    return result


def to_log_config(engine_log: EngineLog | None) -> dict[str, Any]:
    """HostConfig.LogConfig: always json-file, even if the engine has another default.

    Options that are left out come from the node's daemon.json, if it has options of json-file.
    """
    if engine_log is None:
        return {"Type": "json-file"}
    return {
        "Type": "json-file",
        "Config": {
            "max-size": engine_log.max_size,
            "max-file": str(engine_log.max_files),
            # Reading could not continue in the middle of a compressed file.
            "compress": "false",
            # These would add data to every line that nobody sees; the node's options are meant for other containers.
            **dict.fromkeys(("tag", "labels", "labels-regex", "env", "env-regex"), ""),
            # The other mode drops lines.
            "mode": "blocking",
        },
    }


def without_log_mode(body: Mapping[str, Any]) -> dict[str, Any] | None:
    """The same body without the log's ``mode``, so that the node's default applies; None if it has no mode."""
    log = body["HostConfig"]["LogConfig"]
    options = {name: value for name, value in log.get("Config", {}).items() if name != "mode"}
    if options == log.get("Config", {}):
        return None
    return {**body, "HostConfig": {**body["HostConfig"], "LogConfig": {**log, "Config": options}}}


def to_engine_container(
    config: cri.ContainerConfig,
    sandbox_config: cri.PodSandboxConfig,
    *,
    sandbox_id: str,
    pod: SandboxName,
    image: str,
    runtime: str,
    profiles: Mapping[str, str],
    volumes: Mapping[str, str],
    account: Account | None,
    cdi_edits: Edits,
    lowest_oom_score: int,
    features: Capabilities,
    engine_log: EngineLog | None,
) -> dict[str, Any]:
    """The body of POST /containers/create. ``config`` has passed ``check_container``.

    ``image`` is the id of the image that ``config.image`` names; ``volumes`` are the ids of the images that mounts
    name, by those names; ``account`` is that of ``unsettled_user``, if there is one; ``cdi_edits`` are those of its CDI
    devices if the engine has no CDI, else none; ``runtime`` is the sandbox's runtime handler; ``engine_log`` is None if
    the log path will be a link to the engine's json-file.
    """
    security = config.linux.security_context
    resources = config.linux.resources
    added, dropped = to_capabilities(security.capabilities)
    namespace = asked_user_namespace(security.namespace_options)
    mapped = with_mapped_ids(config.mounts, namespace)
    host_config: dict[str, Any] = {
        **to_container_namespaces(security.namespace_options, sandbox_id),
        **to_engine_resources(resources, swap_limit=features.swap_limit),
        "OomScoreAdj": to_oom_score(resources.oom_score_adj, lowest_oom_score),
        "CgroupParent": to_cgroup_parent(sandbox_config.linux.cgroup_parent, features.cgroup_driver),
        "Mounts": to_engine_mounts(config.mounts, runtime, features, volumes),
        "Binds": to_engine_binds(config.mounts, features),
        "Sysctls": uts_sysctls(sandbox_config),
        "Devices": to_engine_devices(config.devices),
        "DeviceRequests": to_device_requests(cdi_names(config)) if features.cdi else [],
        "Privileged": security.privileged,
        "CapAdd": added,
        "CapDrop": dropped,
        "GroupAdd": to_group_add(security, account),
        "ReadonlyRootfs": security.readonly_rootfs,
        "SecurityOpt": to_security_opt(
            security,
            profiles=profiles,
            no_new_privs=security.no_new_privs,
            unset_seccomp="unconfined",
            features=features,
        ),
        "RestartPolicy": {"Name": "no"},
        "LogConfig": to_log_config(engine_log),
    }
    if config.linux.HasField("security_context") and not security.privileged:
        # An empty list asks the API for an unmasked /proc; null would mean the engine's default list.
        host_config["MaskedPaths"] = list(security.masked_paths)
        host_config["ReadonlyPaths"] = list(security.readonly_paths)
    if namespace is not None:
        field = "config.linux.security_context.namespace_options.userns_options"
        host_config["Runtime"] = features.user_namespace_runtime(runtime, field)
        host_config["Annotations"] = {ANNOTATION: namespace.to_annotation(mapped)}
    elif engine_runtime := features.runtime_of(runtime):
        host_config["Runtime"] = engine_runtime
    files = to_cgroup_files(resources, features.cgroup_version)
    host_config = specify(host_config, files, features)
    body: dict[str, Any] = {
        "Image": image,
        "User": to_user(security, account),
        "Env": to_env(config),
        "WorkingDir": config.working_dir,
        "OpenStdin": config.stdin,
        "StdinOnce": config.stdin_once,
        "Tty": config.tty,
        "StopSignal": to_engine_signal(config.stop_signal),
        "Healthcheck": {"Test": ["NONE"]},
        "Labels": _labels(config, sandbox_config, sandbox_id, pod, files, features, engine_log),
        "HostConfig": host_config,
    }
    if config.command:
        body["Entrypoint"] = list(config.command)
    if config.args:
        body["Cmd"] = list(config.args)
    return body if cdi_edits == NO_EDITS else with_edits(body, cdi_edits, features)


def _labels(
    config: cri.ContainerConfig,
    sandbox_config: cri.PodSandboxConfig,
    sandbox_id: str,
    pod: SandboxName,
    files: Mapping[str, str],
    features: Capabilities,
    engine_log: EngineLog | None,
) -> dict[str, str]:
    metadata = config.metadata
    extra = ContainerExtra(
        metadata=kept_metadata(metadata.name, metadata.attempt, pod.name, pod.namespace, pod.uid, pod.attempt),
        cgroup_parent=lost_cgroup_parent(sandbox_config.linux.cgroup_parent, features.cgroup_driver),
        image=config.image.user_specified_image or config.image.image,
        envs=len(config.envs),
        log="cri" if engine_log is not None else "",
        cgroup_files=files,
    )
    own = {
        TYPE_LABEL: CONTAINER_TYPE,
        SANDBOX_ID_LABEL: sandbox_id,
        LOG_PATH_LABEL: log_path(config, sandbox_config),
    }
    return to_engine_labels(config.labels, config.annotations, own, extra)
