"""The pod beside the attacks: how long its probes, its log and a list of containers take."""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Final

from bench.comparison import percentile
from bench.engine import BareEngine
from dockershim.api.cri.v1 import api_pb2 as api
from tests.cri_client import CRI
from tests.engine.pods import container_config, pod, run, sandbox_config, start
from tests.node.server import Server
from tests.processes import log_processes
from tests.processes import resident as resident_of
from tests.waiting import until

#: A line every tenth of a second, as a service that has work logs.
_COMMAND: Final = "while :; do echo still here; usleep 100000; done"
_PROBE_EVERY: Final = 0.15
_LIST_EVERY: Final = 0.05
_LOOK_EVERY: Final = 0.01
#: Seconds that a call may take before it counts as failed.
_PATIENCE: Final = 30


@dataclass(slots=True)
class Times:
    """Seconds: of exec probes, of the bare engine's exec at the same time, of ListContainers, and of lines from the
    engine's hands to the log path."""

    probe: list[float] = field(default_factory=list)
    bare: list[float] = field(default_factory=list)
    log: list[float] = field(default_factory=list)
    listing: list[float] = field(default_factory=list)

    def p90(self) -> dict[str, float]:
        """The 90th percentile of each, by name: one slow call of a busy machine is nobody's attack."""
        return {name: percentile(samples, 90) for name, samples in self._all().items()}

    def worst(self) -> dict[str, float]:
        return {name: max(samples) for name, samples in self._all().items()}

    def _all(self) -> dict[str, list[float]]:
        return {"probe": self.probe, "bare": self.bare, "log": self.log, "list": self.listing}


class Bystander:
    """Made by ``bystander``."""

    def __init__(self, cri: CRI, engine: BareEngine, container_id: str, log: Path) -> None:
        self._cri = cri
        self._engine = engine
        self._container_id = container_id
        self._log = log

    async def watch(self, seconds: float) -> Times:
        """Probe, list and read for so long."""
        times, end = Times(), time.monotonic() + seconds
        await asyncio.gather(self._probe(times, end), self._list(times, end), self._read(times, end))
        return times

    async def _probe(self, times: Times, end: float) -> None:
        while time.monotonic() < end or len(times.probe) < 2:
            began = time.monotonic()
            response = await run(self._cri, self._container_id, "true", timeout=_PATIENCE)
            assert response.exit_code == 0, response
            times.probe.append(time.monotonic() - began)
            await asyncio.sleep(_PROBE_EVERY)
            times.bare.append(await self._bare_probe())
            await asyncio.sleep(_PROBE_EVERY)

    async def _bare_probe(self) -> float:
        began = time.monotonic()
        body = {"Cmd": ["true"], "AttachStdout": True, "AttachStderr": True}
        made = await self._engine.call("POST", f"/containers/{self._container_id}/exec", body)
        await self._engine.read("POST", f"/exec/{made['Id']}/start", {"Detach": False, "Tty": False})
        return time.monotonic() - began

    async def _list(self, times: Times, end: float) -> None:
        while time.monotonic() < end or len(times.listing) < 2:
            began = time.monotonic()
            listed = await self._cri.runtime.ListContainers(api.ListContainersRequest(), timeout=_PATIENCE)
            assert any(one.id == self._container_id for one in listed.containers)
            times.listing.append(time.monotonic() - began)
            await asyncio.sleep(_LIST_EVERY)

    async def _read(self, times: Times, end: float) -> None:
        with self._log.open() as file:
            file.seek(0, os.SEEK_END)
            last = time.time()
            while time.monotonic() < end:
                for line in file.readlines():
                    if (written := _time_of(line)) is not None:
                        times.log.append(time.time() - written)
                        last = time.time()
                await asyncio.sleep(_LOOK_EVERY)
            if time.time() - last > 1 or len(times.log) < 2:
                # What has not come has waited for so long; two samples are the least that has percentiles.
                times.log += [time.time() - last] * 2


def _time_of(line: str) -> float | None:
    match = re.match(r"(\S+?)(\.\d{1,6})\d*Z ", line)
    return datetime.fromisoformat(f"{match[1]}{match[2].ljust(7, '0')}+00:00").timestamp() if match else None


@asynccontextmanager
async def bystander(cri: CRI) -> AsyncIterator[Bystander]:
    """A pod that does nobody any harm."""
    config = sandbox_config()
    async with pod(cri, config) as sandbox_id:
        container_id = await start(cri, sandbox_id, container_config(_COMMAND), config)
        log = Path(config.log_directory, "main.log")
        await until(lambda: log.exists() and bool(log.stat().st_size))
        async with BareEngine() as engine:
            yield Bystander(cri, engine, container_id, log)


def resident(server: Server) -> int:
    """Bytes of memory that the server and its log process have."""
    return sum(map(resident_of, [server.pid, *log_processes(server.pid)]))
