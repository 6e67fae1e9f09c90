"""Threads for the files that every pod needs: checkpoints, CNI results, resolv.conf.

These are local files of dockershim and the engine, so no thread blocks for long. Other work in threads may block for as
long as pods like (writing limits for which the kernel reclaims memory, thousands of processes), so it gets others.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final, ParamSpec, TypeVar

T = TypeVar("T")
P = ParamSpec("P")

_THREADS: Final = ThreadPoolExecutor(4, thread_name_prefix="own files")


async def with_own_thread(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Like asyncio.to_thread, with a thread that ends afterwards, and for which no other work waits.

    For work that changes its thread, or that the kernel may hold up.
    """
    thread = ThreadPoolExecutor(1, thread_name_prefix=call.__qualname__)
    try:
        return await asyncio.get_running_loop().run_in_executor(thread, partial(call, *args, **kwargs))
    finally:
        thread.shutdown(wait=False)


async def with_own_files(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Like asyncio.to_thread, with these threads."""
    context = contextvars.copy_context()
    return await asyncio.get_running_loop().run_in_executor(_THREADS, partial(context.run, call, *args, **kwargs))
