"""Makes an adjustment of plugins to the body of the engine's create call. Pure.

What an engine cannot make is refused, with the name of the plugin and of the field; docs/nri.md has the table. Mounts
and devices are made like the edits of CDI devices (``translate/cdi.py``), which have the same form and the same limits.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from dockershim.api.nri.v1alpha1 import api_pb2 as api
from dockershim.errors import FailedPrecondition, InvalidArgument, Unsupported
from dockershim.nri.adjustments import owner_of
from dockershim.nri.replies import is_removal, without_mark
from dockershim.nri.resources import Where, refuse_unserved, to_limits
from dockershim.translate.capabilities import Capabilities
from dockershim.translate.cdi import (
    NO_EDITS,
    BindMount,
    DeviceNode,
    Edits,
    to_bind_mount,
    to_device_requests,
    with_edits,
)
from dockershim.translate.cgroup_files import LOW_FILE, specify
from dockershim.translate.config_members import read_members, with_members
from dockershim.translate.labels import ContainerExtra, change_annotations, read_extra
from dockershim.translate.mounts import container_path
from dockershim.translate.records import join_resources
from dockershim.translate.resources import SWAP_FILE, to_cgroup_files, to_engine_resources, to_oom_score
from dockershim.translate.sandbox import check_cgroup_parent, check_sysctl, lost_cgroup_parent, to_cgroup_parent
from dockershim.translate.user_namespace import ANNOTATION, read_user_namespace

#: What to do about an adjustment that the engine cannot make.
REMEDY: Final = "change the plugin's configuration, or remove the plugin"

_API_OCI_ANNOTATIONS: Final = (1, 43)
#: The first whose engine hands all of a seccomp profile on, also to privileged containers.
_API_WHOLE_SECCOMP: Final = (1, 42)
#: Linux's RLIM_INFINITY as NRI has it; the engine's is -1.
_INFINITE: Final = 2**64 - 1
_MOST: Final = 2**63 - 1
_SYSTEMD_PARTS: Final = 3
#: Mounts that the engine makes itself, in every container.
_ENGINES_MOUNTS: Final = (
    *("/proc", "/dev", "/dev/pts", "/dev/mqueue", "/dev/shm", "/sys", "/sys/fs/cgroup"),
    *("/etc/hosts", "/etc/hostname", "/etc/resolv.conf"),
)
_ENGINES_DEVICES: Final = (
    *("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty", "/dev/console", "/dev/ptmx"),
    "/dev/fuse",
)
#: The engine gives a tmpfs the second of each pair where the first is not asked for; the OCI runtime does not.
_TMPFS_DEFAULTS: Final = (("exec", "noexec"), ("suid", "nosuid"), ("dev", "nodev"))
_TMPFS_FLAGS: Final = frozenset(
    (
        *("rw", "ro", "exec", "noexec", "suid", "nosuid", "dev", "nodev", "sync", "async", "dirsync"),
        *("atime", "noatime", "diratime", "nodiratime", "relatime", "norelatime", "strictatime", "nostrictatime"),
    )
)
_TMPFS_VALUES: Final = frozenset(("size", "mode", "uid", "gid", "nr_inodes", "nr_blocks", "mpol"))

#: Seconds. While a hook runs, the engine does nothing else with its container, and with its pod's infra container: a
#: hook without an end would leave a pod that nobody can stop.
_HOOK_TIMEOUT: Final = 60

_SCHEDULER_NUMBERS: Final = ("nice", "priority", "runtime", "deadline", "period")
_NODE_TYPES: Final = {"b": "block", "c": "character", "u": "character"}

#: A device node: ``b`` or ``c``, major and minor number.
DeviceNumber = tuple[str, int, int]


@dataclass(frozen=True, slots=True)
class _Blame:
    """Names a field and the plugin that has set it, for errors."""

    owners: api.OwningPlugins
    container_id: str

    def __call__(self, field: api.Field, path: str, key: str = "") -> str:
        owner = without_mark(owner_of(self.owners, self.container_id, field, key))
        plugins = "plugins" if "," in owner else "plugin"
        return f"{plugins} {owner!r}: {path}" if owner else path


def blame(owners: api.OwningPlugins, container_id: str) -> Where:
    """Names a field of a container, and the plugin that has set it, in errors."""
    return _Blame(owners, container_id)


# -- What is needed of the node.


def device_numbers(adjustment: api.ContainerAdjustment) -> set[DeviceNumber]:
    """The devices whose nodes on the host ``to_edits`` needs: an engine copies nodes, and makes none by number."""
    return {_number(device) for device in _kept(adjustment.linux.devices) if device.type in _NODE_TYPES}


def cdi_names(adjustment: api.ContainerAdjustment) -> tuple[str, ...]:
    """The CDI devices, each once, for engines without CDI of their own."""
    return tuple(dict.fromkeys(device.name for device in adjustment.CDI_devices))


def to_edits(adjustment: api.ContainerAdjustment, where: Where, nodes: Mapping[DeviceNumber, str]) -> Edits:
    """The bind mounts and the device nodes. ``nodes`` are paths of the host's nodes.

    ``translate.cdi.check_host`` has to see what is at the ``host_paths`` of the result, with ``REMEDY``. Raises
    Unsupported for what the engine cannot mount or make, FailedPrecondition for a device that the host does not have.
    """
    binds = [mount for mount in _mounts(adjustment) if mount.type != "tmpfs"]
    return Edits(
        nodes=tuple(_to_node(device, where, nodes) for device in _kept(adjustment.linux.devices)),
        mounts=tuple(_to_bind(mount, where) for mount in binds),
    )


def _number(device: api.LinuxDevice) -> DeviceNumber:
    return ("b" if device.type == "b" else "c", device.major, device.minor)


def _kept(devices: Iterable[api.LinuxDevice]) -> Iterator[api.LinuxDevice]:
    return (device for device in devices if not is_removal(device.path))


def _mounts(adjustment: api.ContainerAdjustment) -> Iterator[api.Mount]:
    return (mount for mount in adjustment.mounts if not is_removal(mount.destination))


def _to_node(device: api.LinuxDevice, where: Where, nodes: Mapping[DeviceNumber, str]) -> DeviceNode:
    at = where(api.Devices, f"linux.devices[{device.path}]", container_path(device.path))
    if device.type not in _NODE_TYPES:
        raise Unsupported(f"{at}.type: the engine cannot create {device.type} device nodes; {REMEDY}")
    host_path = nodes.get(_number(device))
    if host_path is None:
        number = f"{device.type} {device.major}:{device.minor}"
        raise FailedPrecondition(f"{at}: device {number} has no node on the host that the engine could copy")
    return DeviceNode(
        where=at,
        path=device.path,
        host_path=host_path,
        type=_NODE_TYPES[device.type],
        number=(device.major, device.minor),
        file_mode=device.file_mode.value if device.HasField("file_mode") else None,
        uid=device.uid.value if device.HasField("uid") else None,
        gid=device.gid.value if device.HasField("gid") else None,
        # As NRI gives them to the OCI runtime.
        permissions="rwm" if device.type == "b" else "rw",
    )


def _to_bind(mount: api.Mount, where: Where) -> BindMount:
    target = container_path(mount.destination)
    at = where(api.Mounts, f"mounts[{mount.destination}]", target)
    if mount.type not in ("", "bind", "none") or (mount.type != "bind" and not {"bind", "rbind"} & set(mount.options)):
        raise Unsupported(f"{at}.type: {mount.type!r:.80}is not supported, only bind and tmpfs are")
    if not mount.source.startswith("/"):
        raise InvalidArgument(f"{at}.source: {mount.source!r:.200} is not an absolute path")
    return to_bind_mount(at, mount.source, target, mount.options, REMEDY)


# -- The body.


def apply_adjustment(
    body: dict[str, Any],
    adjustment: api.ContainerAdjustment,
    where: Where,
    *,
    edits: Edits = NO_EDITS,
    cdi_edits: Edits = NO_EDITS,
    lowest_oom_score: int,
    features: Capabilities,
) -> None:
    """Make the adjustment of ``CreateResult`` to a body of ``to_engine_container``.

    ``where`` is ``blame`` of the same result; ``edits`` are those of ``to_edits``, ``cdi_edits`` those of ``cdi_names``
    for an engine without CDI. Raises InvalidArgument, Unsupported or FailedPrecondition with the names of the plugin
    and the field; the body is of no use then.
    """
    _refuse_unserved(adjustment, where)
    members = _members(adjustment, where)
    extra = read_extra(ContainerExtra, body["Labels"]) or ContainerExtra()
    extra = _change_env(body, adjustment.env, extra)
    if adjustment.args:
        body["Entrypoint"] = list(adjustment.args)
        # The engine adds the image's only to the image's entrypoint.
        body.pop("Cmd", None)
    _change_mounts(body, adjustment, where)
    _remove_devices(body, adjustment, where)
    body.update(with_edits(body, edits, features))
    _add_cdi_devices(body, adjustment, cdi_edits, features)
    _change_rlimits(body, adjustment.rlimits, where)
    linux = adjustment.linux
    extra = _change_cgroup(body, linux.cgroups_path, extra, where, features)
    if linux.HasField("oom_score_adj"):
        body["HostConfig"]["OomScoreAdj"] = to_oom_score(linux.oom_score_adj.value, lowest_oom_score)
    if linux.HasField("seccomp_policy"):
        _change_seccomp(body, linux.seccomp_policy, where, features)
    # A container in the pod's network namespace is in the node's if the pod is; only this tells.
    pod_on_node = body["HostConfig"]["UTSMode"] == "host"
    _change_namespaces(body, linux.namespaces, where)
    _change_sysctls(body, linux.sysctl, where, pod_on_node=pod_on_node)
    extra = _change_resources(body, linux.resources, extra, where, features)
    _give_members(body, members, features)
    # Plugins may have changed the files, the engine's fields for the same, and the runtime's members.
    body["HostConfig"] = specify(body["HostConfig"], extra.cgroup_files, features)
    _change_labels(body, adjustment.annotations, extra, features)


def _refuse_unserved(adjustment: api.ContainerAdjustment, where: Where) -> None:
    linux = adjustment.linux
    for name in filter(lambda key: not is_removal(key), sorted(linux.net_devices)):
        at = where(api.LinuxNetDevices, f"linux.net_devices[{name}]", name)
        raise Unsupported(f"{at}: the engine cannot move network devices; {REMEDY}")
    for is_set, field, name in (
        (linux.rdt.HasField("clos_id"), api.RdtClosID, "rdt.clos_id"),
        (linux.rdt.HasField("schemata"), api.RdtSchemata, "rdt.schemata"),
        (linux.rdt.enable_monitoring.value, api.RdtEnableMonitoring, "rdt.enable_monitoring"),
        (linux.HasField("memory_policy"), api.MemoryPolicy, "memory_policy"),
    ):
        if is_set:
            raise Unsupported(f"{where(field, f'linux.{name}', '')}: the engine has no such field; {REMEDY}")
    for rule in linux.resources.devices:
        if not rule.allow:
            # No plugin owns them: those of several add up.
            raise Unsupported(f"linux.resources.devices: the engine can allow devices, but not deny them; {REMEDY}")


#: A member of config.json, what names its field in errors, and its value.
_Member = tuple[str, str, dict[str, Any]]


def _members(adjustment: api.ContainerAdjustment, where: Where) -> list[_Member]:
    """What the Engine API has no fields for, and dockershim-runc gives. Raises InvalidArgument."""
    found: list[_Member] = []
    linux = adjustment.linux
    if kinds := [kind for kind, _ in adjustment.hooks.ListFields()]:
        at = where(api.OciHooks, f"hooks.{kinds[0].name}", "")
        hooks = {kind.json_name: [_to_hook(one, at) for one in getattr(adjustment.hooks, kind.name)] for kind in kinds}
        found.append(("hooks", at, hooks))
    # Without any field, a class or a policy of none asks for what every container has.
    if linux.io_priority.ListFields():
        at = where(api.IoPriority, "linux.io_priority", "")
        kind = api.IOPrioClass.Name(getattr(linux.io_priority, "class"))
        if kind == "IOPRIO_CLASS_NONE":
            raise InvalidArgument(f"{at}.class: must be set with a priority")
        found.append(("ioPriority", at, {"class": kind, "priority": linux.io_priority.priority}))
    if (scheduler := linux.scheduler).ListFields():
        at = where(api.LinuxSched, "linux.scheduler", "")
        policy = api.LinuxSchedulerPolicy.Name(scheduler.policy)
        if policy == "SCHED_NONE":
            raise InvalidArgument(f"{at}.policy: must be set with other fields")
        numbers = {name: getattr(scheduler, name) for name in _SCHEDULER_NUMBERS if getattr(scheduler, name)}
        flags = [api.LinuxSchedulerFlag.Name(flag) for flag in scheduler.flags]
        found.append(("scheduler", at, {"policy": policy, **numbers, "flags": flags}))
    return found


def _to_hook(hook: api.Hook, at: str) -> dict[str, Any]:
    if not hook.path.startswith("/"):
        raise InvalidArgument(f"{at}: {hook.path!r:.200} is not an absolute path")
    timeout = hook.timeout.value if hook.HasField("timeout") else _HOOK_TIMEOUT
    if timeout <= 0:
        raise InvalidArgument(f"{at}: {hook.path!r:.200} has a timeout of {timeout} s; it must be greater than 0")
    return {"path": hook.path, "args": list(hook.args), "env": list(hook.env), "timeout": timeout}


def _give_members(body: dict[str, Any], members: list[_Member], features: Capabilities) -> None:
    if not members:
        return
    host_config = body["HostConfig"]
    try:
        host_config["Runtime"] = features.config_members_runtime(host_config.get("Runtime", ""))
    except Unsupported as error:
        raise Unsupported(f"{members[0][1]}: the engine has no such field, and {error}; {REMEDY}") from error
    given = {name: value for name, _, value in members}
    body["HostConfig"] = with_members(host_config, {**read_members(host_config), **given})


def _change_env(body: dict[str, Any], change: Iterable[api.KeyValue], extra: ContainerExtra) -> ContainerExtra:
    """Replace variables in place, and put new ones behind those of the request, whose number a label tells."""
    values: dict[str, str] = {}
    removed: dict[str, None] = {}
    for variable in change:
        name = without_mark(variable.key)
        if is_removal(variable.key):
            removed[name] = None
        else:
            values[name] = f"{name}={variable.value}"
    if not values and not removed:
        return extra
    # One plugin may have removed what another one sets.
    removed = {name: None for name in removed if name not in values}
    env: list[str] = []
    asked = extra.envs
    for place, variable in enumerate(body["Env"]):
        name = variable.partition("=")[0]
        if name in values:
            env.append(values.pop(name))
        elif name not in removed:
            env.append(variable)
        elif place < extra.envs:
            asked -= 1
    # Alone, without a value, a name removes what the image says of it.
    body["Env"] = [*env[:asked], *values.values(), *env[asked:], *removed]
    return msgspec.structs.replace(extra, envs=asked + len(values))


def _change_mounts(body: dict[str, Any], adjustment: api.ContainerAdjustment, where: Where) -> None:
    host_config = body["HostConfig"]
    put = {container_path(mount.destination) for mount in _mounts(adjustment)}
    removed = {
        container_path(without_mark(one.destination)) for one in adjustment.mounts if is_removal(one.destination)
    }
    for target in sorted((removed - put).intersection(_ENGINES_MOUNTS)):
        at = where(api.Mounts, f"mounts[-{target}]", target)
        raise Unsupported(f"{at}: the engine creates this mount in every container; {REMEDY}")
    tmpfs = [mount for mount in _mounts(adjustment) if mount.type == "tmpfs"]
    gone = removed | {container_path(mount.destination) for mount in tmpfs}
    host_config["Mounts"] = [mount for mount in host_config["Mounts"] if mount["Target"] not in gone]
    host_config["Binds"] = [bind for bind in host_config["Binds"] if bind.split(":")[1] not in gone]
    if tmpfs:
        host_config["Tmpfs"] = {container_path(mount.destination): _tmpfs_options(mount, where) for mount in tmpfs}
    namespace, mapped = read_user_namespace(host_config)
    if namespace is not None:
        # The runtime refuses a mount that is not there. What a plugin mounts keeps the ids of the node.
        annotation = namespace.to_annotation(sorted(mapped - put - removed))
        host_config["Annotations"] = {**host_config["Annotations"], ANNOTATION: annotation}


def _tmpfs_options(mount: api.Mount, where: Where) -> str:
    for option in mount.options:
        name, has_value, _ = option.partition("=")
        if name not in (_TMPFS_VALUES if has_value else _TMPFS_FLAGS):
            at = where(api.Mounts, f"mounts[{mount.destination}].options", container_path(mount.destination))
            raise Unsupported(f"{at}: {option!r:.80} is not an option that the engine supports for a tmpfs; {REMEDY}")
    asked = list(mount.options)
    return ",".join((*asked, *(yes for yes, no in _TMPFS_DEFAULTS if no not in asked and yes not in asked)))


def _remove_devices(body: dict[str, Any], adjustment: api.ContainerAdjustment, where: Where) -> None:
    host_config = body["HostConfig"]
    put = {container_path(device.path) for device in _kept(adjustment.linux.devices)}
    gone = {container_path(without_mark(one.path)) for one in adjustment.linux.devices if is_removal(one.path)} - put
    for path in sorted(gone):
        if path in _ENGINES_DEVICES or host_config["Privileged"]:
            at = where(api.Devices, f"linux.devices[-{path}]", path)
            why = "a privileged container has all devices" if host_config["Privileged"] else "every container has it"
            raise Unsupported(f"{at}: {why}; {REMEDY}")
    devices = host_config["Devices"]
    host_config["Devices"] = [one for one in devices if container_path(one["PathInContainer"]) not in gone]


def _add_cdi_devices(
    body: dict[str, Any], adjustment: api.ContainerAdjustment, cdi_edits: Edits, features: Capabilities
) -> None:
    names = cdi_names(adjustment)
    if not names:
        return
    if not features.cdi:
        body.update(with_edits(body, cdi_edits, features))
        return
    host_config = body["HostConfig"]
    before = [name for request in host_config["DeviceRequests"] for name in request["DeviceIDs"]]
    host_config["DeviceRequests"] = to_device_requests(tuple(dict.fromkeys((*before, *names))))


def _change_rlimits(body: dict[str, Any], rlimits: Iterable[api.POSIXRlimit], where: Where) -> None:
    ulimits: dict[str, dict[str, Any]] = {}
    for limit in rlimits:
        at = where(api.Rlimits, f"rlimits[{limit.type}]", limit.type)
        if limit.type == "RLIMIT_AS":
            raise Unsupported(f"{at}: the engine cannot limit the address space; {REMEDY}")
        name = limit.type.removeprefix("RLIMIT_").lower()
        numbers = {"Soft": limit.soft, "Hard": limit.hard}
        for which, number in numbers.items():
            if _MOST < number < _INFINITE:
                raise InvalidArgument(f"{at}.{which.lower()}: {number} must be at most {_MOST}, or infinite")
        ulimits[name] = {"Name": name, **{which: _signed(number) for which, number in numbers.items()}}
    if ulimits:
        body["HostConfig"]["Ulimits"] = list(ulimits.values())


def _signed(number: int) -> int:
    return -1 if number == _INFINITE else number


def _change_cgroup(
    body: dict[str, Any], path: str, extra: ContainerExtra, where: Where, features: Capabilities
) -> ContainerExtra:
    """Put the container's cgroup below that of the path. Its own name is the engine's."""
    if not path:
        return extra
    at = where(api.CgroupsPath, "linux.cgroups_path", "")
    if features.cgroup_driver == "systemd":
        parts = path.split(":")
        if len(parts) != _SYSTEMD_PARTS:
            raise InvalidArgument(f"{at}: {path!r:.200} is not a slice:prefix:name of the systemd driver")
        parent = parts[0]
    else:
        parent = posixpath.dirname(path.rstrip("/"))
    if parent.strip("/") == "":
        raise InvalidArgument(f"{at}: {path!r:.200} must have a parent, below which the engine creates a cgroup")
    check_cgroup_parent(parent, features.cgroup_driver, at)
    body["HostConfig"]["CgroupParent"] = to_cgroup_parent(parent, features.cgroup_driver)
    return msgspec.structs.replace(extra, cgroup_parent=lost_cgroup_parent(parent, features.cgroup_driver))


def _change_seccomp(body: dict[str, Any], policy: api.LinuxSeccomp, where: Where, features: Capabilities) -> None:
    at = where(api.SeccompPolicy, "linux.seccomp_policy", "")
    if not features.seccomp:
        raise FailedPrecondition(f"{at}: the engine was built without seccomp")
    if not policy.default_action:
        # The engine would take it for no profile at all.
        raise InvalidArgument(f"{at}.default_action: must not be empty")
    if features.api < _API_WHOLE_SECCOMP:
        newer = [name for name in ("flags", "listener_path", "listener_metadata") if getattr(policy, name)]
        if policy.HasField("default_errno"):
            newer.append("default_errno")
        for name in newer:
            raise Unsupported(f"{at}.{name}: requires Docker 23 or newer")
        if body["HostConfig"]["Privileged"]:
            raise Unsupported(f"{at}: a policy for a privileged container requires Docker 23 or newer")
    profile = msgspec.json.encode(_profile(policy)).decode()
    kept = [option for option in body["HostConfig"]["SecurityOpt"] if not option.startswith("seccomp=")]
    body["HostConfig"]["SecurityOpt"] = [*kept, f"seccomp={profile}"]


def _profile(policy: api.LinuxSeccomp) -> dict[str, Any]:
    """The policy as a profile of the engine, whose fields are those of the OCI runtime specification."""
    profile: dict[str, Any] = {
        "defaultAction": policy.default_action,
        "architectures": list(policy.architectures),
        "flags": list(policy.flags),
        "listenerPath": policy.listener_path,
        "listenerMetadata": policy.listener_metadata,
    }
    profile = {name: value for name, value in profile.items() if value}
    if policy.HasField("default_errno"):
        profile["defaultErrnoRet"] = policy.default_errno.value
    profile["syscalls"] = [
        {
            "names": list(call.names),
            "action": call.action,
            **({"errnoRet": call.errno_ret.value} if call.HasField("errno_ret") else {}),
            "args": [
                {"index": one.index, "value": one.value, "valueTwo": one.value_two, "op": one.op} for one in call.args
            ],
        }
        for call in policy.syscalls
    ]
    return profile


#: HostConfig's field, and its value for a namespace of the container's own, by type. Removed, it is the node's: "host".
_MODES: Final = {
    "network": ("NetworkMode", "none"),
    "ipc": ("IpcMode", "private"),
    "pid": ("PidMode", ""),
    "uts": ("UTSMode", ""),
    "cgroup": ("CgroupnsMode", "private"),
}


def _change_namespaces(body: dict[str, Any], namespaces: Iterable[api.LinuxNamespace], where: Where) -> None:
    for namespace in namespaces:
        kind = without_mark(namespace.type)
        at = where(api.Namespace, f"linux.namespaces[{namespace.type}]", kind)
        if kind == "mount" and namespace.type == kind and not namespace.path:
            continue  # Every container has its own.
        if kind not in _MODES:
            raise Unsupported(f"{at}: the engine does not support this for a container; {REMEDY}")
        if namespace.path and not is_removal(namespace.type):
            raise Unsupported(f"{at}.path: the engine joins namespaces of containers, not those of a path; {REMEDY}")
        mode, own = _MODES[kind]
        body["HostConfig"][mode] = "host" if is_removal(namespace.type) else own


def _change_sysctls(body: dict[str, Any], change: Mapping[str, str], where: Where, *, pod_on_node: bool) -> None:
    host_config = body["HostConfig"]
    sysctls = dict(host_config.get("Sysctls") or {})
    of_node = "host" in (host_config["NetworkMode"], host_config["UTSMode"])
    of_node = of_node or (pod_on_node and host_config["NetworkMode"].startswith("container:"))
    for key in filter(is_removal, change):
        sysctls.pop(without_mark(key), None)
    for key, value in sorted(change.items()):
        if is_removal(key):
            continue
        at = where(api.Sysctl, "linux.sysctl", key)
        check_sysctl(key, value, at, network_of_node=of_node, ipc_of_node=host_config["IpcMode"] == "host")
        sysctls[key] = value
    host_config["Sysctls"] = sysctls


def _change_resources(
    body: dict[str, Any], change: api.LinuxResources, extra: ContainerExtra, where: Where, features: Capabilities
) -> ContainerExtra:
    host_config = body["HostConfig"]
    before = join_resources(host_config, extra.cgroup_files)
    refuse_unserved(change, before, features, where, "linux.resources")
    limits = to_limits(change, "linux.resources")
    files = {**extra.cgroup_files, **to_cgroup_files(limits.resources, features.cgroup_version)}
    # What the kubelet has asked for by a file would undo what a plugin asks for by the engine's field.
    for is_set, name in ((change.memory.swap.value, SWAP_FILE), (change.memory.reservation.value, LOW_FILE)):
        if is_set and name not in change.unified:
            files.pop(name, None)
    host_config.update(to_engine_resources(limits.resources, swap_limit=features.swap_limit, before=before))
    if change.memory.limit.value == -1:
        host_config.update({"Memory": 0, "MemorySwap": 0})
    elif change.memory.swap.value == -1 and features.swap_limit:
        host_config["MemorySwap"] = -1
    host_config.update(limits.more)
    rules = [_rule(one) for one in change.devices]
    if rules:
        host_config["DeviceCgroupRules"] = rules
    return msgspec.structs.replace(extra, cgroup_files=files)


def _rule(rule: api.LinuxDeviceCgroup) -> str:
    """An element of HostConfig.DeviceCgroupRules, as ``c 1:3 rwm``."""
    numbers = (rule.major, rule.minor)
    major, minor = (
        "*" if one.value == -1 or not is_set else one.value
        for one, is_set in zip(numbers, (rule.HasField("major"), rule.HasField("minor")), strict=True)
    )
    return f"{rule.type or 'a'} {major}:{minor} {rule.access}"


def _change_labels(
    body: dict[str, Any], change: Mapping[str, str], extra: ContainerExtra, features: Capabilities
) -> None:
    """Annotations are labels of ours; newer engines also hand them to the OCI runtime, as NRI means them.

    There is one for it already if the pod has a user namespace.
    """
    removed = [without_mark(key) for key in change if is_removal(key)]
    added = {key: value for key, value in change.items() if not is_removal(key)}
    body["Labels"] = change_annotations(body["Labels"], extra, removed, added)
    if added and features.api >= _API_OCI_ANNOTATIONS:
        body["HostConfig"]["Annotations"] = {**added, **(body["HostConfig"].get("Annotations") or {})}
