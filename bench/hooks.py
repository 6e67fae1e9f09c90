"""What a hook costs a call: an update that changes nothing without hook servers, with one, and that one asked directly.

The update asks the engine for nothing but an inspect, so that little else moves the figures.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.json_format import ParseDict

from bench.comparison import Comparison
from dockershim.api.cri.v1 import api_pb2 as cri
from dockershim.api.hooks.v1alpha1 import api_pb2 as hooks
from dockershim.config import Config
from tests.cri_client import CRI

HOOK = "PreUpdateContainerResources"
#: Samples between two changes of the folder, which the server takes note of after a tenth of a second.
IN_A_ROW = 10
_TAKEN_NOTE_OF = 0.5  # seconds
#: Of the time that the update takes without hook servers and the hook by itself.
_LIMIT = 1.15


async def measure(server: CRI, container_id: str, folder: Path, repetitions: int) -> list[Comparison]:
    """The samples of a container of ours, turn about; ``folder`` is for the hook server's files."""
    samples: dict[str, list[float]] = defaultdict(list)
    with _example(folder) as config:
        async with grpc.aio.insecure_channel(f"unix:{config['remote-endpoint']}") as channel:
            ask: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(
                f"/runtime.v1alpha1.RuntimeHookService/{HOOK}Hook"
            )
            request = cri.UpdateContainerResourcesRequest(container_id=container_id)
            told = await _request(server, request, folder, config)
            for turn in range(max(2, repetitions // IN_A_ROW)):
                for which in ("without", "with") if turn % 2 else ("with", "without"):
                    async with _registered(config if which == "with" else None):
                        samples[which] += await _row(lambda: server.runtime.UpdateContainerResources(request))
                samples["alone"] += await _row(lambda: ask(told))
    without, alone = samples["without"], samples["alone"]
    return [
        Comparison("an update, no hook servers", without),
        Comparison("a hook by itself", alone),
        Comparison(
            "an update, one hook",
            samples["with"],
            [update + hook for update, hook in zip(without, alone, strict=True)],
            _LIMIT,
        ),
    ]


async def _request(server: CRI, update: cri.UpdateContainerResourcesRequest, folder: Path, config: Any) -> bytes:
    """What the server tells of such an update."""
    async with _registered(config):
        await server.runtime.UpdateContainerResources(update)
    line = json.loads((folder / "calls").read_text().splitlines()[0])
    return ParseDict(line["request"], hooks.ContainerResourceHookRequest()).SerializeToString()


@contextmanager
def _example(folder: Path) -> Iterator[dict[str, Any]]:
    """The example hook server, and its configuration."""
    socket = folder / "hooks.sock"
    with (folder / "calls").open("wb") as output:
        process = subprocess.Popen([sys.executable, "-m", "examples.hook_server", f"--socket={socket}"], stdout=output)
    try:
        while not socket.exists():
            time.sleep(0.05)
            assert process.poll() is None, "the hook server ended"
        yield {"remote-endpoint": str(socket), "failure-policy": "Fail", "runtime-hooks": [HOOK]}
    finally:
        process.terminate()
        process.wait()


@asynccontextmanager
async def _registered(config: dict[str, Any] | None) -> AsyncIterator[None]:
    if config is None:
        yield
        return
    file = Config().runtime_hooks_dir / "bench.json"
    file.parent.mkdir(0o755, parents=True, exist_ok=True)
    file.write_text(json.dumps(config))
    await asyncio.sleep(_TAKEN_NOTE_OF)
    try:
        yield
    finally:
        file.unlink()
        await asyncio.sleep(_TAKEN_NOTE_OF)


async def _row(call: Callable[[], Awaitable[Any]]) -> list[float]:
    """The durations of calls one after the other; the first, which finds what a pause has left, does not count."""
    durations = []
    for _ in range(IN_A_ROW + 1):
        begun = time.perf_counter()
        await call()
        durations.append(time.perf_counter() - begun)
    return durations[1:]
