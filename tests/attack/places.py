"""Attacks on what the server does outside of its calls: on the node's folder of logs, and on its HTTP ports."""

from __future__ import annotations

import asyncio
import stat
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import aiohttp

from dockershim.api.cri.v1 import api_pb2 as api
from tests.engine.pods import container_config, pod, remove, sandbox_config, start, stop
from tests.processes import log_processes

if TYPE_CHECKING:
    from tests.attack.__main__ import Field, Outcome

PAGE: Final = "127.0.0.1:9398"
METRICS: Final = "127.0.0.1:9399"
FLAGS: Final = (f"--debug-bind-addr={PAGE}", f"--metrics-bind-addr={METRICS}")
#: Seconds between two looks of a bystander, and what one may take.
_LOOK_EVERY: Final = 0.1
_PATIENCE: Final = 2.0
#: What a container does to its log, one after the other; ``$elsewhere`` is a folder of the node that is not its own.
_SWAPS: Final = """
set +e; cd $folder
while :; do
    for kind in "mknod 0.log c 1 3" "mknod 0.log b 7 77" "mkfifo 0.log" "ln -s $elsewhere/secret 0.log" \\
            "ln -s $elsewhere/new 0.log" "mkdir 0.log" "truncate -s 1T 0.log"; do
        rm -rf 0.log; $kind; echo line; usleep 50000
    done
    rm -rf 0.log; echo line; usleep 50000
    mv $folder $folder.old; ln -s $elsewhere $folder; echo line; usleep 50000; rm $folder; mv $folder.old $folder
    touch $folder/0.log.$(cat /proc/uptime | tr -d ' .')
done
"""


@asynccontextmanager
async def hostile_logs(place: Field, outcome: Outcome) -> AsyncIterator[None]:
    """A container swaps its own log for whatever it can make, with a writable hostPath of the node's logs."""
    sandbox = sandbox_config()
    folder, told = Path(sandbox.log_directory, "main"), _warnings(place)
    with tempfile.TemporaryDirectory() as elsewhere:
        Path(elsewhere, "secret").touch()
        swaps = _SWAPS.replace("$folder", str(folder)).replace("$elsewhere", elsewhere)
        mounts = [api.Mount(host_path="/var/log", container_path="/var/log")]
        async with pod(place.cri, sandbox) as sandbox_id:
            config = container_config(swaps, mounts=mounts, log_path="main/0.log")
            tenant = await start(place.cri, sandbox_id, config, sandbox)
            opened = asyncio.create_task(_opened(place))
            yield
            outcome.seen["opened"] = await opened
            outcome.expect(not await opened, "what is not a file was opened")
            told = _warnings(place) - told
            outcome.seen["warnings"] = told
            outcome.expect(told > 0, "the container has swapped nothing")
            outcome.expect(told <= 1 + place.seconds / 60, "the server's log is filled")
            outcome.expect(list(Path(elsewhere).iterdir()) == [Path(elsewhere, "secret")], "root made files elsewhere")
            outcome.expect(not Path(elsewhere, "secret").read_bytes(), "root wrote to a file elsewhere")
            began = time.monotonic()
            await stop(place.cri, tenant)
            await remove(place.cri, tenant)
            outcome.seen["stop and remove s"] = round(time.monotonic() - began, 1)
            outcome.expect(time.monotonic() - began < 25, "the container's end waits for its log")


def _warnings(place: Field) -> int:
    return place.server.log.read_text(errors="replace").count("cannot write the logs of")


async def _opened(place: Field) -> list[str]:
    """What the log process has opened below the node's logs that is not a regular file."""
    found, end = set(), time.monotonic() + place.seconds - 1
    while time.monotonic() < end:
        for process in log_processes(place.server.pid):
            for descriptor in Path(f"/proc/{process}/fd").iterdir():
                with suppress(OSError):
                    leads_to = str(descriptor.readlink())
                    mode = descriptor.stat().st_mode
                    if leads_to.startswith("/var/log/") and not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                        found.add(leads_to)
        await asyncio.sleep(0.005)
    return sorted(found)


@asynccontextmanager
async def idle_connections(place: Field, outcome: Outcome) -> AsyncIterator[None]:
    """Clients that hold connections to metrics and page: a probe of the page and a scrape are answered all the time."""
    async with place.attacker("idle", PAGE, METRICS, outcome=outcome):
        looks = [
            asyncio.create_task(_looks(f"http://{PAGE}/healthz", place.seconds - 1)),
            asyncio.create_task(_looks(f"http://{METRICS}/metrics", place.seconds - 1)),
        ]
        yield
    for name, look in zip(("healthz", "metrics"), looks, strict=True):
        failed, times = await look
        outcome.seen |= {f"{name} asked": len(times), "failed": failed, "worst ms": round(max(times) * 1000)}
        outcome.expect(not failed, f"{failed} of {len(times)} requests for {name} were not answered")


async def _looks(url: str, seconds: float) -> tuple[int, list[float]]:
    """How many requests failed, and the seconds that each took."""
    failed, times, end = 0, [], time.monotonic() + seconds
    while time.monotonic() < end:
        began = time.monotonic()
        try:
            async with (
                aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(_PATIENCE)) as client,
                client.get(url) as response,
            ):
                failed += response.status != 200
        except (aiohttp.ClientError, TimeoutError):
            failed += 1
        times.append(time.monotonic() - began)
        await asyncio.sleep(_LOOK_EVERY)
    return failed, times
