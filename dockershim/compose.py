"""Puts the server's parts together. The one module that knows all of them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from dockershim.config import Config


@dataclass(frozen=True, slots=True)
class Services:
    """The two CRI services and what the process does with them.

    ``runtime`` and ``images`` have one coroutine method per RPC that is built, in snake case
    (``run_pod_sandbox(request) -> response``); a server-streaming RPC is an async generator. What is missing
    answers UNIMPLEMENTED. ``reload`` takes over the reloadable part of a new configuration.
    """

    runtime: object
    images: object
    reload: Callable[[Config], None]


@asynccontextmanager
async def compose(config: Config) -> AsyncIterator[Services]:
    yield Services(object(), object(), lambda config: None)
