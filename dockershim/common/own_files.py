"""Threads for the files that every pod needs: checkpoints, results of CNI, resolv.conf.

They are local files of ours and of the engine, so no thread stays away for long. Whoever else takes threads, for what
pods decide on (limits that the kernel has to reclaim memory for, thousands of processes), keeps nobody from these.
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


async def with_own_files(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """As asyncio.to_thread, by these threads."""
    context = contextvars.copy_context()
    return await asyncio.get_running_loop().run_in_executor(_THREADS, partial(context.run, call, *args, **kwargs))
