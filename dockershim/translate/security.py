"""Converts security contexts to the engine's SecurityOpt, User, groups and namespace modes."""

from __future__ import annotations

from collections.abc import Mapping

from dockershim.api.cri.v1 import api_pb2 as cri
from dockershim.errors import FailedPrecondition, InvalidArgument
from dockershim.translate.accounts import Account, is_number
from dockershim.translate.capabilities import Capabilities
from dockershim.translate.checks import check_text
from dockershim.translate.user_namespace import asked_user_namespace

SecurityContext = cri.LinuxSandboxSecurityContext | cri.LinuxContainerSecurityContext

#: The prefix in the deprecated fields. Some clients write it into the new ones too, and every runtime removes it.
_LOCALHOST = "localhost/"
_UNCONFINED = "unconfined"
_DEFAULT_PROFILES = ("runtime/default", "docker/default")


def seccomp_profile_path(context: SecurityContext) -> str:
    """The path of the seccomp profile that must be read from disk, or the empty string.

    It is ``seccomp.localhost_ref``, or the deprecated ``seccomp_profile_path`` if ``seccomp`` is not set.
    """
    if context.HasField("seccomp"):
        if context.seccomp.profile_type != cri.SecurityProfile.Localhost:
            return ""
        path = context.seccomp.localhost_ref.removeprefix(_LOCALHOST)
    elif context.seccomp_profile_path.startswith(_LOCALHOST):
        path = context.seccomp_profile_path.removeprefix(_LOCALHOST)
    else:
        return ""
    if not path.startswith("/"):
        raise InvalidArgument(f"security_context.seccomp: {path!r} must be the absolute path of a profile")
    return path


def _seccomp(context: SecurityContext, profiles: Mapping[str, str], unset: str, features: Capabilities) -> list[str]:
    """The seccomp option. Without one the engine applies its default profile, except to privileged containers."""
    path = seccomp_profile_path(context)
    if path:
        if not features.seccomp:
            raise FailedPrecondition("security_context.seccomp: the engine was built without seccomp")
        return [f"seccomp={profiles[path]}"]
    if context.HasField("seccomp"):
        unconfined = context.seccomp.profile_type == cri.SecurityProfile.Unconfined
    elif context.seccomp_profile_path in _DEFAULT_PROFILES:
        unconfined = False
    elif context.seccomp_profile_path in ("", "unconfined"):
        unconfined = (context.seccomp_profile_path or unset) == "unconfined"
    else:
        path = context.seccomp_profile_path
        raise InvalidArgument(f"security_context.seccomp_profile_path: {path!r} is not a valid profile")
    return ["seccomp=unconfined"] if unconfined else []


def apparmor_profile_name(context: SecurityContext) -> str:
    """The name of the node's AppArmor profile that a security context asks for, or empty. Raises InvalidArgument.

    It is ``apparmor.localhost_ref``, or the deprecated ``apparmor_profile`` if ``apparmor`` is not set.
    """
    if not context.HasField("apparmor"):
        deprecated: str = getattr(context, "apparmor_profile", "")
        name = deprecated.removeprefix(_LOCALHOST) if deprecated.startswith(_LOCALHOST) else ""
        if deprecated and not name and deprecated not in (_UNCONFINED, *_DEFAULT_PROFILES):
            raise InvalidArgument(f"security_context.apparmor_profile: {deprecated!r} is not a valid profile")
    elif context.apparmor.profile_type == cri.SecurityProfile.Localhost:
        name = context.apparmor.localhost_ref.removeprefix(_LOCALHOST)
        if not name:
            raise InvalidArgument("security_context.apparmor.localhost_ref: must not be empty")
    else:
        name = ""
    check_text(name, "security_context.apparmor")
    return name


def _apparmor(context: SecurityContext, features: Capabilities) -> list[str]:
    name = apparmor_profile_name(context)
    if context.HasField("apparmor"):
        unconfined = context.apparmor.profile_type == cri.SecurityProfile.Unconfined
    else:
        unconfined = getattr(context, "apparmor_profile", "") == _UNCONFINED
    if name and not features.apparmor:
        raise FailedPrecondition(
            f"security_context.apparmor: profile {name!r} requires AppArmor, which is disabled on the node"
        )
    if not features.apparmor:
        return []
    return [f"apparmor={name}"] if name else ["apparmor=unconfined"] if unconfined else []


def _selinux(options: cri.SELinuxOption, features: Capabilities) -> list[str]:
    fields = {"user": options.user, "role": options.role, "type": options.type, "level": options.level}
    for key, value in fields.items():
        check_text(value, f"security_context.selinux_options.{key}")
    if not features.selinux:
        # Ignored, as in every runtime: a node without SELinux has no labels to set.
        return []
    return [f"label={key}:{value}" for key, value in fields.items() if value]


def to_security_opt(
    context: SecurityContext,
    *,
    profiles: Mapping[str, str],
    no_new_privs: bool,
    unset_seccomp: str,
    features: Capabilities,
) -> list[str]:
    """HostConfig.SecurityOpt. ``profiles`` has the content of each seccomp profile file by its path;
    ``unset_seccomp`` says what a context without any seccomp field gets: "unconfined" or "" (the default)."""
    privileges = ["no-new-privileges"] if no_new_privs else []
    if isinstance(context, cri.LinuxContainerSecurityContext) and context.privileged:
        # A privileged container is never confined; the other fields do not count (the CRI's comment on ``privileged``).
        return [*privileges, "seccomp=unconfined", *_unconfined(features)]
    return [
        *privileges,
        *_seccomp(context, profiles, unset_seccomp, features),
        *_apparmor(context, features),
        *_selinux(context.selinux_options, features),
    ]


def _unconfined(features: Capabilities) -> list[str]:
    return [*(["apparmor=unconfined"] if features.apparmor else []), *(["label=disable"] if features.selinux else [])]


def to_capabilities(asked: cri.Capability) -> tuple[list[str], list[str]]:
    """HostConfig.CapAdd and CapDrop. As with other runtimes, what is dropped is not added, whatever else adds it.

    The engine itself adds what is in both lists: a capability, or all of them for ALL.
    """
    dropped = {_capability(name) for name in asked.drop_capabilities}
    added = [name for name in asked.add_capabilities if _capability(name) not in dropped]
    return added, list(asked.drop_capabilities)


def _capability(name: str) -> str:
    return name.upper().removeprefix("CAP_")


def to_user(context: SecurityContext, account: Account | None = None) -> str:
    """Config.User, ``user[:group]``; empty for the image's user.

    A group without a user is an error (the CRI's comment on ``run_as_group``). ``account`` is that of
    ``unsettled_user``.
    """
    username = getattr(context, "run_as_username", "")
    user = username
    if context.HasField("run_as_user"):
        if username:
            raise InvalidArgument("security_context: run_as_user and run_as_username are mutually exclusive")
        user = str(_id(context.run_as_user.value, "run_as_user"))
    check_text(user, "security_context.run_as_username")
    if ":" in user:
        raise InvalidArgument("security_context.run_as_username: must not contain ':'")
    if not context.HasField("run_as_group"):
        strict = context.supplemental_groups_policy == cri.Strict
        return _with_own_group(account) if strict and account is not None else user
    if not user:
        raise InvalidArgument("security_context.run_as_group: requires run_as_user or run_as_username")
    return f"{user}:{_id(context.run_as_group.value, 'run_as_group')}"


def _with_own_group(account: Account) -> str:
    """The user with the group that it has anyway: beside a group the engine adds no others."""
    if account.gid is None and not is_number(account.user):
        return account.user  # The engine tells that there is no such user.
    return f"{account.user}:{account.gid or 0}"


def to_group_add(context: SecurityContext, account: Account | None = None) -> list[str]:
    """HostConfig.GroupAdd: the supplemental groups, and with the policy Merge those that the image gives the user.

    The engine adds the latter itself, unless there is an ``account``, that of ``unsettled_user``.
    """
    groups = [_id(group, "supplemental_groups") for group in context.supplemental_groups]
    if account is not None and context.supplemental_groups_policy == cri.Merge:
        groups += account.groups
    return list(map(str, dict.fromkeys(groups)))


def _id(value: int, field: str) -> int:
    if not 0 <= value <= 2**31 - 1:
        raise InvalidArgument(f"security_context.{field}: {value} is not a valid user or group id")
    return value


def check_sandbox_namespaces(options: cri.NamespaceOption) -> None:
    """Check a sandbox's NamespaceOption. Raises InvalidArgument or Unsupported."""
    asked_user_namespace(options)
    if options.network not in (cri.POD, cri.NODE):
        raise InvalidArgument("namespace_options.network: must be POD or NODE for a sandbox")
    if options.ipc not in (cri.POD, cri.NODE):
        raise InvalidArgument("namespace_options.ipc: must be POD or NODE for a sandbox")
    if options.pid == cri.TARGET:
        raise InvalidArgument("namespace_options.pid: must be POD, CONTAINER or NODE for a sandbox")


def to_container_namespaces(options: cri.NamespaceOption, sandbox_id: str) -> dict[str, str]:
    """NetworkMode, IpcMode, PidMode and UTSMode of a container of this sandbox."""
    if options.network not in (cri.POD, cri.NODE):
        raise InvalidArgument("namespace_options.network: must be POD or NODE for a container")
    infra = f"container:{sandbox_id}"
    ipc = {cri.POD: infra, cri.CONTAINER: "private", cri.NODE: "host"}
    if options.ipc not in ipc:
        raise InvalidArgument("namespace_options.ipc: must be POD, CONTAINER or NODE for a container")
    if options.pid == cri.TARGET and not options.target_id:
        raise InvalidArgument("namespace_options.target_id: required by mode TARGET")
    pid = {
        cri.POD: infra,
        cri.CONTAINER: "",
        cri.NODE: "host",
        cri.TARGET: f"container:{options.target_id}",
    }
    return {
        "NetworkMode": infra,
        "IpcMode": ipc[options.ipc],
        "PidMode": pid[options.pid],
        "UTSMode": "host" if options.network == cri.NODE else "",
    }
