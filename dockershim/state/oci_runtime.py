"""What the engine's runtime of ``--oci-runtime``, dockershim-runc, can do on this machine."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from dockershim.errors import Unsupported
from dockershim.translate.capabilities import (
    NO_CONFIG_MEMBERS,
    NO_EARLY_NETWORK,
    NO_UNIFIED,
    NO_USER_NAMESPACES,
    RuntimeSupport,
    early_network_program,
    user_namespace_program,
)

#: Folders of every engine, both of the node's root; an overlay needs two.
_FOLDERS: Final = ("containers", "volumes")
_FEATURES: Final = ("--dockershim-features",)
#: Seconds, and those for its end after SIGKILL.
_DEADLINE: Final = 5.0
_END: Final = 1.0
_LONGEST_PROBLEM: Final = 300


async def user_namespace_support(api: tuple[int, int], info: Mapping[str, Any], runtime: str) -> RuntimeSupport:
    """Try what a pod needs of kernel and file system: dockershim-runc makes a namespace, and an overlay with its ids.

    ``info`` is the engine's ``GET /info``; ``runtime`` the name, empty for none. It takes 5 ms.
    """
    if not runtime:
        return NO_USER_NAMESPACES
    words = ("--dockershim-probe", str(info.get("DockerRootDir", "")), *_FOLDERS)
    return await _support(runtime, partial(user_namespace_program, api, info), words, "user namespaces")


async def early_network_support(api: tuple[int, int], info: Mapping[str, Any], runtime: str) -> RuntimeSupport:
    """Ask whether dockershim-runc has containers join network namespaces that are there. It takes 2 ms."""
    if not runtime:
        return NO_EARLY_NETWORK
    program = partial(early_network_program, api, info)
    return await _support(runtime, program, _FEATURES, "network namespaces", option="--early-network, ")


async def config_members_support(api: tuple[int, int], info: Mapping[str, Any], runtime: str) -> RuntimeSupport:
    """Ask whether dockershim-runc puts members into config.json for a runc that knows them. It takes 2 ms."""
    if not runtime:
        return NO_CONFIG_MEMBERS
    return await _support(runtime, partial(user_namespace_program, api, info), _FEATURES, "members")


async def unified_support(api: tuple[int, int], info: Mapping[str, Any], runtime: str) -> RuntimeSupport:
    """Ask whether dockershim-runc puts files of cgroup v2 into config.json; runc refuses them on v1. It takes 2 ms."""
    if not runtime or str(info.get("CgroupVersion")) != "2":
        return NO_UNIFIED
    return await _support(runtime, partial(user_namespace_program, api, info), _FEATURES, "unified")


async def _support(
    runtime: str, program: Callable[[str], str], words: Sequence[str], feature: str, option: str = ""
) -> RuntimeSupport:
    """Whether the program of the runtime answers to these words that it has the feature.

    ``program`` gives its path, or raises Unsupported. ``option`` is for the problem, if the runtime's is not all.
    """
    try:
        await _ask(program(runtime), *words, feature=feature)
    except Unsupported as error:
        return RuntimeSupport(problem=f"{option}--oci-runtime={runtime}: {error}")
    return RuntimeSupport(runtime=runtime)


async def _ask(program: str, *words: str, feature: str) -> None:
    """Raises Unsupported unless the program answers that it has the feature."""
    try:
        process = await asyncio.create_subprocess_exec(
            program,
            *words,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
    except OSError as error:
        raise Unsupported(f"cannot start {program}: {error.strerror}") from error
    try:
        async with asyncio.timeout(_DEADLINE):
            said, complained = await process.communicate()
    except TimeoutError:
        raise Unsupported(f"{program} did not respond within {_DEADLINE:g} s") from None
    finally:
        await _end(process)
    if feature.encode() in said.splitlines():
        return
    problem = complained.decode(errors="replace").strip()[:_LONGEST_PROBLEM]
    raise Unsupported(
        problem if "dockershim-runc: " in problem else f"{program} is not dockershim-runc, or its version is too old"
    )


async def _end(process: asyncio.subprocess.Process) -> None:
    """SIGKILL the program and wait for its end, but not for one that hangs in the kernel."""
    with contextlib.suppress(ProcessLookupError):
        process.kill()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_END):
            await process.wait()
