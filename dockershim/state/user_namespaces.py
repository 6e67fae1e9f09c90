"""Whether the engine's runtime of ``--oci-runtime`` can make user namespaces on this machine."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Any, Final

from dockershim.errors import Unsupported
from dockershim.translate.capabilities import NO_USER_NAMESPACES, UserNamespaceSupport, user_namespace_program

#: Folders of every engine, both of the node's root; an overlay needs two.
_FOLDERS: Final = ("containers", "volumes")
_ANSWER: Final = b"user namespaces\n"
#: Seconds, and those for its end after SIGKILL.
_DEADLINE: Final = 5.0
_END: Final = 1.0
_LONGEST_PROBLEM: Final = 300


async def user_namespace_support(api: tuple[int, int], info: Mapping[str, Any], runtime: str) -> UserNamespaceSupport:
    """Try what a pod needs of kernel and file system: dockershim-runc makes a namespace, and an overlay with its ids.

    ``info`` is the engine's ``GET /info``; ``runtime`` the name, empty for none. It takes 5 ms.
    """
    if not runtime:
        return NO_USER_NAMESPACES
    try:
        program = user_namespace_program(api, info, runtime)
        await _probe(program, str(info.get("DockerRootDir", "")))
    except Unsupported as error:
        return UserNamespaceSupport(problem=f"--oci-runtime={runtime}: {error}")
    return UserNamespaceSupport(runtime=runtime)


async def _probe(program: str, root: str) -> None:
    try:
        process = await asyncio.create_subprocess_exec(
            program,
            "--dockershim-probe",
            root,
            *_FOLDERS,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
    except OSError as error:
        raise Unsupported(f"{program} cannot be started: {error.strerror}") from error
    try:
        async with asyncio.timeout(_DEADLINE):
            said, complained = await process.communicate()
    except TimeoutError:
        raise Unsupported(f"{program} did not answer within {_DEADLINE:g} s") from None
    finally:
        await _end(process)
    if said == _ANSWER:
        return
    words = complained.decode(errors="replace").strip()[:_LONGEST_PROBLEM]
    raise Unsupported(words if "dockershim-runc: " in words else f"{program} is not dockershim-runc")


async def _end(process: asyncio.subprocess.Process) -> None:
    """SIGKILL the program and wait for its end, but not for one that hangs in the kernel."""
    with contextlib.suppress(ProcessLookupError):
        process.kill()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_END):
            await process.wait()
