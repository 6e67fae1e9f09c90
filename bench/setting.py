"""What a benchmark measures: our server and the bare engine, with pods for each."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.engine import BareEngine
from bench.life import discarded
from bench.pods import BarePod, OurPod
from bench.reads import pull
from bench.workload import Workload
from dockershim.translate.capabilities import Capabilities
from tests.cri_client import CRI


@dataclass(frozen=True, slots=True)
class Setting:
    """Both sides of a run. ``image`` is the id of the containers' image."""

    server: CRI
    engine: BareEngine
    features: Capabilities
    workload: Workload
    image: str

    def ours(self, name: str) -> OurPod:
        return OurPod(self.server, self.workload, f"ours-{name}", self.image)

    def bare(self, name: str) -> BarePod:
        return BarePod(self.engine, self.features, self.workload, f"bare-{name}", self.image)

    @asynccontextmanager
    async def running(self, count: int) -> AsyncIterator[list[OurPod]]:
        """Pods that run for the length of a block."""
        pods = [self.ours(f"read-{number}") for number in range(count)]
        async with discarded(pods):
            for pod in pods:
                await pod.bring_up()
            yield pods


@asynccontextmanager
async def setting(target: str) -> AsyncIterator[Setting]:
    """The server at this endpoint and the node's engine, which has pulled the image, for the length of a block."""
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        async with CRI(target) as server, BareEngine() as engine:
            workload = Workload(Path(folder))
            workload.prepare()
            yield Setting(server, engine, await engine.capabilities(), workload, await pull(engine))
