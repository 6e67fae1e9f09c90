"""The node's seccomp and AppArmor profiles that a security context names."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from dockershim.api.cri.v1 import api_pb2 as cri
from dockershim.errors import FailedPrecondition, InvalidArgument
from dockershim.host_paths.server_side import HostPaths
from dockershim.translate.security import SecurityContext, apparmor_profile_name, seccomp_profile_path

#: A line each is ``<name> (<mode>)``.
APPARMOR_PROFILES: Final = Path("/sys/kernel/security/apparmor/profiles")
_LONGEST_PROFILE: Final = 1024 * 1024


async def read_profiles(host_paths: HostPaths, context: SecurityContext) -> Mapping[str, str]:
    """The content of the seccomp profile that a security context names, by its path.

    Raises InvalidArgument, and FailedPrecondition if the node has AppArmor, but not the profile that the context names.
    """
    confined = not (isinstance(context, cri.LinuxContainerSecurityContext) and context.privileged)
    if confined and (name := apparmor_profile_name(context)):
        await asyncio.to_thread(_check_loaded, name)
    path = seccomp_profile_path(context)
    if not path:
        return {}
    try:
        return {path: await host_paths.read(path, _LONGEST_PROFILE)}
    except OSError as error:
        raise InvalidArgument(f"security_context.seccomp: profile {path!r} cannot be read: {error}") from error


def _check_loaded(name: str) -> None:
    # The engine would take the container, and fail at its start.
    try:
        loaded = APPARMOR_PROFILES.read_bytes()
    except OSError:
        # No AppArmor, which the translation refuses; or a server in a container that does not see the file.
        return
    if name.encode() not in {line.rpartition(b" (")[0] for line in loaded.split(b"\n")}:
        raise FailedPrecondition(
            f"security_context.apparmor: profile {name!r} is not loaded; load it on the node with apparmor_parser"
        )
