"""Hook servers for tests: gRPC on a unix socket, with the bytes of each answer in the test's hands."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc

from dockershim.hooks.config import FailurePolicy, Hook, HookServer

SERVICE = "runtime.v1alpha1.RuntimeHookService"
#: Gets the request's bytes and gives the answer's.
Answer = Callable[[bytes], Awaitable[bytes]]


@asynccontextmanager
async def serving(socket: Path, answer: Answer) -> AsyncIterator[grpc.aio.Server]:
    """``answer`` serves every hook at ``socket`` for the length of a block."""

    async def handle(request: bytes, context: grpc.aio.ServicerContext[Any, Any]) -> bytes:
        try:
            return await answer(request)
        except PermissionError as error:
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, str(error))

    handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_unary_rpc_method_handler(handle)
    server = grpc.aio.server()
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(SERVICE, {f"{hook}Hook": handler for hook in Hook}),)
    )
    server.add_insecure_port(f"unix:{socket}")
    await server.start()
    try:
        yield server
    finally:
        await server.stop(None)


def hook_server(endpoint: Path, policy: FailurePolicy = FailurePolicy.FAIL, name: str = "a.json") -> HookServer:
    """One that is called for everything."""
    return HookServer(name, str(endpoint), policy, frozenset(Hook))
