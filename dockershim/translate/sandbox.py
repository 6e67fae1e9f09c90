"""Converts PodSandboxConfig to the engine's JSON of an infra container."""

from __future__ import annotations

import ipaddress
import posixpath
import re
from collections.abc import Mapping
from typing import Any, Final, Literal

from google.protobuf.json_format import MessageToDict

from dockershim.api.cri.v1 import api_pb2 as cri
from dockershim.errors import InvalidArgument
from dockershim.translate.capabilities import Capabilities
from dockershim.translate.checks import check_enums, check_text, reject, require
from dockershim.translate.labels import CONTAINER_NAME_LABEL, SANDBOX_TYPE, TYPE_LABEL, SandboxExtra, to_engine_labels
from dockershim.translate.names import SandboxName, kept_metadata
from dockershim.translate.resources import check_resources, to_oom_score
from dockershim.translate.security import (
    check_sandbox_namespaces,
    to_group_add,
    to_security_opt,
    to_user,
)
from dockershim.translate.user_namespace import ANNOTATION, asked_user_namespace

_INFRA_CPU_SHARES = 2
_INFRA_OOM_SCORE = -998
_SHM_SIZE = 64 * 1024 * 1024
_LONGEST_HOSTNAME = 64
_HIGHEST_PORT = 65535
_DRIVERS = ("systemd", "cgroupfs")
_LONGEST_CGROUP = 2048
_LONGEST_FILE_NAME = 255
#: Bytes of the overhead or resources of a pod. A kubelet sends less than a hundred.
_LARGEST_LIMITS = 64 * 1024

_Protocol = Literal["tcp", "udp", "sctp"]
_PROTOCOLS: Final[dict[cri.Protocol, _Protocol]] = {cri.TCP: "tcp", cri.UDP: "udp", cri.SCTP: "sctp"}

#: Sysctls that the kernel has per namespace. runc refuses all others, but only when the container starts.
_IPC_SYSCTLS = re.compile(r"kernel\.(msgmax|msgmnb|msgmni|sem|shmall|shmmax|shmmni|shm_rmid_forced)|fs\.mqueue\..+")
_NET_SYSCTLS = re.compile(r"net\..+")
_UTS_SYSCTLS = re.compile(r"kernel\.domainname")


def sandbox_name(metadata: cri.PodSandboxMetadata) -> SandboxName:
    """The sandbox's metadata. Raises InvalidArgument if a part is missing."""
    for field in ("name", "namespace", "uid"):
        value = getattr(metadata, field)
        require(value, f"config.metadata.{field}")
        check_text(value, f"config.metadata.{field}")
        if ";" in value:
            # A ';' separates the arguments of a CNI plugin.
            raise InvalidArgument(f"config.metadata.{field}: {value!r} must not have a ';'")
    return SandboxName(metadata.name, metadata.namespace, metadata.uid, metadata.attempt)


def is_host_network(config: cri.PodSandboxConfig) -> bool:
    """Whether the pod is in the node's network namespace."""
    return config.linux.security_context.namespace_options.network == cri.NODE


def check_sandbox(config: cri.PodSandboxConfig, node_hostname: str) -> None:
    """Check what can be checked without the engine."""
    check_enums(config, "config")
    sandbox_name(config.metadata)
    reject(config.HasField("windows"), "config.windows", "not supported by a Linux runtime")
    check_sandbox_namespaces(config.linux.security_context.namespace_options)
    _check_hostname(config, node_hostname)
    _check_log_directory(config.log_directory)
    _check_dns(config.dns_config)
    _check_sysctls(config)
    _check_ports(config)
    check_text(config.linux.cgroup_parent, "config.linux.cgroup_parent")
    check_resources(config.linux.overhead, "config.linux.overhead")
    check_resources(config.linux.resources, "config.linux.resources")


def _check_hostname(config: cri.PodSandboxConfig, node_hostname: str) -> None:
    check_text(config.hostname, "config.hostname")
    if len(config.hostname) > _LONGEST_HOSTNAME:
        raise InvalidArgument(f"config.hostname: must be no longer than {_LONGEST_HOSTNAME} characters")
    reject(
        is_host_network(config) and config.hostname not in ("", node_hostname),
        "config.hostname",
        f"must be the node's hostname, {node_hostname!r}, for a pod on the node's network",
    )


def _check_log_directory(directory: str) -> None:
    check_text(directory, "config.log_directory")
    if directory and (not directory.startswith("/") or ".." in directory.split("/")):
        raise InvalidArgument(f"config.log_directory: {directory!r} must be an absolute path without '..'")


def _check_dns(dns: cri.DNSConfig) -> None:
    for field in ("servers", "searches", "options"):
        for value in getattr(dns, field):
            check_text(value, f"config.dns_config.{field}")
            if not value or " " in value:
                raise InvalidArgument(f"config.dns_config.{field}: {value!r} must not be empty or contain spaces")


def _check_sysctls(config: cri.PodSandboxConfig) -> None:
    options = config.linux.security_context.namespace_options
    for key, value in config.linux.sysctls.items():
        check_sysctl(
            key,
            value,
            "config.linux.sysctls",
            network_of_node=options.network == cri.NODE,
            ipc_of_node=options.ipc == cri.NODE,
        )


def check_sysctl(key: str, value: str, field: str, *, network_of_node: bool, ipc_of_node: bool) -> None:
    """Check a sysctl of a pod or a container in these namespaces. Raises InvalidArgument naming the field."""
    # The kernel itself separates several numbers of a sysctl with tabs.
    check_text(value.replace("\t", " "), f"{field}[{key}]")
    name = key.replace("/", ".")
    if _NET_SYSCTLS.fullmatch(name) or _UTS_SYSCTLS.fullmatch(name):
        if network_of_node:
            raise InvalidArgument(f"{field}: {key} cannot be set for a pod on the node's network")
    elif _IPC_SYSCTLS.fullmatch(name):
        if ipc_of_node:
            raise InvalidArgument(f"{field}: {key} cannot be set for a pod in the node's IPC namespace")
    else:
        raise InvalidArgument(f"{field}: {key} is not namespaced and cannot be set for a pod")


def uts_sysctls(config: cri.PodSandboxConfig) -> dict[str, str]:
    """The sysctls that each container needs, too, as the engine gives it a UTS namespace of its own."""
    return {key: value for key, value in config.linux.sysctls.items() if _UTS_SYSCTLS.fullmatch(key.replace("/", "."))}


def _check_ports(config: cri.PodSandboxConfig) -> None:
    for port in config.port_mappings:
        _check_host_ip(port.host_ip)
        for field in ("container_port", "host_port"):
            if not 0 <= getattr(port, field) <= _HIGHEST_PORT:
                raise InvalidArgument(f"config.port_mappings.{field}: {getattr(port, field)} is not a valid port")
        if port.host_port and not port.container_port:
            raise InvalidArgument(f"config.port_mappings.container_port: required by host_port {port.host_port}")


def _check_host_ip(address: str) -> None:
    try:
        if address:
            ipaddress.ip_address(address)
    except ValueError:
        raise InvalidArgument(f"config.port_mappings.host_ip: {address!r} is not a valid IP address") from None


def published_ports(config: cri.PodSandboxConfig) -> list[cri.PortMapping]:
    """The mappings that publish a port: those with a host port, of a pod that is not on the host network."""
    if is_host_network(config):
        return []
    return [port for port in config.port_mappings if port.host_port]


def protocol_name(protocol: cri.Protocol) -> _Protocol:
    """``tcp``, ``udp`` or ``sctp``."""
    return _PROTOCOLS[protocol]


def to_cgroup_parent(parent: str, driver: str) -> str:
    """HostConfig.CgroupParent: a path for cgroupfs; for systemd the name of the slice, which contains its path."""
    return posixpath.basename(parent.rstrip("/")) if driver == "systemd" else parent


def lost_cgroup_parent(parent: str, driver: str) -> str:
    """The cgroup parent, if HostConfig.CgroupParent cannot hold it as it is; otherwise empty."""
    return "" if to_cgroup_parent(parent, driver) == parent else parent


def check_cgroup_parent(parent: str, driver: str, field: str) -> None:
    """Check a parent that the kubelet did not choose. Raises InvalidArgument if it would lead out of the cgroup tree,
    or if the engine would refuse it."""
    check_text(parent, field)
    parts = parent.strip("/").split("/")
    too_long = len(parent.encode()) > _LONGEST_CGROUP or any(len(part.encode()) > _LONGEST_FILE_NAME for part in parts)
    if ".." in parts or "." in parts or too_long:
        raise InvalidArgument(f"{field}: {parent!r:.200} is not a valid path of a cgroup")
    check_driver(parent, driver, field)
    if driver != "systemd" and not parent.startswith("/"):
        raise InvalidArgument(f"{field}: {parent!r:.200} must be an absolute path")


def check_driver(parent: str, driver: str, field: str) -> None:
    """Raises InvalidArgument for a parent that was made for another cgroup driver than the engine's.

    With the systemd driver every parent is a slice; with cgroupfs none is: it would become a folder of that name that
    systemd does not know, without the limits that the kubelet has set on the slice.
    """
    if parent and driver in _DRIVERS and (driver == "systemd") != parent.rstrip("/").endswith(".slice"):
        other = next(name for name in _DRIVERS if name != driver)
        raise InvalidArgument(
            f"{field}: {parent!r:.200} is of the {other} driver, but the engine's cgroup driver is {driver}: set the"
            f" kubelet's cgroupDriver to {driver}, or the engine's to {other} (\"exec-opts\":"
            f' ["native.cgroupdriver={other}"] in its daemon.json)'
        )


def to_resolv_conf(dns: cri.DNSConfig) -> str:
    """The content of resolv.conf; empty if the request has no DNS configuration."""
    lines = [f"nameserver {server}" for server in dns.servers]
    if dns.searches:
        lines.append("search " + " ".join(dns.searches))
    if dns.options:
        lines.append("options " + " ".join(dns.options))
    return "".join(line + "\n" for line in lines)


def to_infra_container(
    config: cri.PodSandboxConfig,
    *,
    image: str,
    runtime_handler: str,
    network_mode: str,
    publish_ports: bool,
    profiles: Mapping[str, str],
    lowest_oom_score: int,
    features: Capabilities,
    early: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The body of POST /containers/create. ``config`` has passed ``check_sandbox``.

    ``early`` is what an early network changes of the HostConfig; None for a network that is set up after the start.

    Raises InvalidArgument for requests that this engine does not support.
    """
    context = config.linux.security_context
    options = context.namespace_options
    check_driver(config.linux.cgroup_parent, features.cgroup_driver, "config.linux.cgroup_parent")
    security = to_security_opt(context, profiles=profiles, no_new_privs=True, unset_seccomp="", features=features)
    body: dict[str, Any] = {
        "Image": image,
        "User": to_user(context),
        "Labels": _labels(config, runtime_handler, features),
        "HostConfig": {
            "NetworkMode": network_mode,
            "IpcMode": "host" if options.ipc == cri.NODE else "shareable",
            "PidMode": "host" if options.pid == cri.NODE else "",
            "UTSMode": "host" if is_host_network(config) else "",
            "CgroupParent": to_cgroup_parent(config.linux.cgroup_parent, features.cgroup_driver),
            "Sysctls": dict(config.linux.sysctls),
            "CpuShares": _INFRA_CPU_SHARES,
            "OomScoreAdj": to_oom_score(_INFRA_OOM_SCORE, lowest_oom_score),
            "ShmSize": _SHM_SIZE,
            "ReadonlyRootfs": context.readonly_rootfs,
            "GroupAdd": to_group_add(context),
            "SecurityOpt": security,
            "RestartPolicy": {"Name": "no"},
            "LogConfig": {"Type": "none"},
        },
    }
    if namespace := asked_user_namespace(options):
        field = "config.linux.security_context.namespace_options.userns_options"
        body["HostConfig"]["Runtime"] = features.user_namespace_runtime(runtime_handler, field)
        body["HostConfig"]["Annotations"] = {ANNOTATION: namespace.to_annotation()}
    elif early is not None:
        body["HostConfig"] |= early
    elif runtime := features.runtime_of(runtime_handler):
        body["HostConfig"]["Runtime"] = runtime
    if config.hostname and not is_host_network(config):
        body["Hostname"] = config.hostname
    if publish_ports:
        body["ExposedPorts"], body["HostConfig"]["PortBindings"] = _port_bindings(config)
    return body


def _labels(config: cri.PodSandboxConfig, runtime_handler: str, features: Capabilities) -> dict[str, str]:
    name, linux = config.metadata, config.linux
    limits: dict[str, Any] = _limits(linux)
    # For the engine, the infra container just has its own PID namespace; the mode matters only to the containers.
    pid = linux.security_context.namespace_options.pid
    extra = SandboxExtra(
        metadata=kept_metadata(name.name, name.namespace, name.uid, name.attempt),
        cgroup_parent=lost_cgroup_parent(linux.cgroup_parent, features.cgroup_driver),
        runtime_handler=runtime_handler,
        log_directory=config.log_directory,
        pid=cri.NamespaceMode.Name(pid) if pid not in (cri.POD, cri.NODE) else "",
        **limits,
    )
    own = {TYPE_LABEL: SANDBOX_TYPE, CONTAINER_NAME_LABEL: "POD"}
    return to_engine_labels(config.labels, config.annotations, own, extra)


def _limits(
    message: cri.LinuxPodSandboxConfig | cri.UpdatePodSandboxResourcesRequest,
) -> dict[str, dict[str, Any]]:
    """``overhead`` and ``resources``, those that are set, as JSON objects with the CRI's names."""
    return {
        field: MessageToDict(getattr(message, field), preserving_proto_field_name=True)
        for field in ("overhead", "resources")
        if message.HasField(field)
    }


def to_new_limits(request: cri.UpdatePodSandboxResourcesRequest) -> dict[str, dict[str, Any]]:
    """The new ``overhead`` and ``resources`` of a pod, those that are set, as RunPodSandbox would have kept them.

    Kubelets read the limits of the pod's cgroup, where -1 stands for none, and take the overhead from them. So they
    also send less than -1; RunPodSandbox gets 0 for no memory limit. Raises InvalidArgument naming the field.
    """
    plain = cri.UpdatePodSandboxResourcesRequest()
    plain.CopyFrom(request)
    for field in ("overhead", "resources"):
        if not request.HasField(field):
            continue
        limits: cri.LinuxContainerResources = getattr(plain, field)
        if limits.ByteSize() > _LARGEST_LIMITS:
            raise InvalidArgument(f"{field}: {limits.ByteSize()} bytes long; at most {_LARGEST_LIMITS} are allowed")
        limits.memory_limit_in_bytes = max(0, limits.memory_limit_in_bytes)
        limits.cpu_quota = max(-1, limits.cpu_quota)
        check_resources(limits, field)
    return _limits(plain)


def _port_bindings(config: cri.PodSandboxConfig) -> tuple[dict[str, Any], dict[str, list[dict[str, str]]]]:
    exposed: dict[str, Any] = {}
    bindings: dict[str, list[dict[str, str]]] = {}
    for port in published_ports(config):
        key = f"{port.container_port}/{protocol_name(port.protocol)}"
        exposed[key] = {}
        bindings.setdefault(key, []).append({"HostIp": port.host_ip, "HostPort": str(port.host_port)})
    return exposed, bindings
