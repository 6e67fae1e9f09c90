"""Threads for work that blocks, apart by who can lengthen it.

* ``with_own_files``: local files of dockershim and the engine that every pod needs: checkpoints, CNI results,
  resolv.conf. No thread blocks for long.
* ``with_own_thread``: what blocks for as long as pods like, or looks at as much as they like to have: limits for which
  the kernel reclaims memory, thousands of processes, mounts, layers. No other work waits for such a thread.
* ``asyncio.to_thread``: what only the node's administrator can lengthen. The linter wants to know of each module why.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final, ParamSpec, TypeVar

from dockershim.errors import ResourceExhausted

T = TypeVar("T")
P = ParamSpec("P")

_THREADS: Final = ThreadPoolExecutor(4, thread_name_prefix="own files")


async def with_own_thread(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Like asyncio.to_thread, with a thread that ends afterwards, and for which no other work waits.

    For work that changes its thread, too. Raises ResourceExhausted if the kernel gives no thread, beside what ``call``
    raises.
    """
    thread = ThreadPoolExecutor(1, thread_name_prefix=getattr(call, "__qualname__", ""))
    context = contextvars.copy_context()
    try:
        try:
            running = asyncio.get_running_loop().run_in_executor(thread, partial(context.run, call, *args, **kwargs))
        except RuntimeError as error:
            raise ResourceExhausted(
                "the node has reached its limit of processes or threads: check for pods without a pids limit"
            ) from error
        return await running
    finally:
        thread.shutdown(wait=False)


async def with_own_files(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Like asyncio.to_thread, with these threads."""
    context = contextvars.copy_context()
    return await asyncio.get_running_loop().run_in_executor(_THREADS, partial(context.run, call, *args, **kwargs))
