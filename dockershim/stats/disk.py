"""Measures the disk usage of containers in the background: one walk at a time, mostly none."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Final, Self

import background
from dockershim.api.cri.v1 import api_pb2 as cri
from dockershim.common.own_files import with_own_thread
from dockershim.engine.client import Engine
from dockershim.engine_files.containerd import likely_root, root_behind, root_of, upper_dir
from dockershim.errors import NotFound, ShimError, Unavailable
from dockershim.state.inventory import Inventory, Record
from dockershim.stats.layers import LayerUsage
from dockershim.stats.tree import Pace, Stopped, Tree, measure
from dockershim.translate.capabilities import Capabilities
from dockershim.translate.records import ContainerRecord

logger = logging.getLogger(__name__)

#: The next measurement of a layer waits at least this many times as long as the last one took.
_REST: Final = 5
#: The walk of a small tree ends before its first rest, so the next walk waits this many times as long as it took.
_REST_BETWEEN: Final = 9
_LONGEST_REST_BETWEEN: Final = 1.0
#: For a layer that this process does not see: seconds that the engine may take to count it, and seconds between.
_ENGINE_DEADLINE: Final = 60.0
_ENGINE_EVERY: Final = 600.0


class DiskUsage:
    """The measured sizes of writable layers, and the folder that has them.

    A running container's layer is measured after ``every`` seconds, and whenever the container starts or ends; later it
    does not change.
    """

    def __init__(self, inventory: Inventory, engine: Engine, *, every: float) -> None:
        self._inventory = inventory
        self._engine = engine
        self._every = every
        #: By container id, when it is measured next, by the monotonic clock.
        self._due: dict[str, float] = {}
        self._layers: dict[str, LayerUsage] = {}
        #: By container id, its folder in containerd's image store. It is seen while the container runs.
        self._snapshots: dict[str, str] = {}
        #: containerd's root folder, once a container's mounts have shown it.
        self._store_root = ""
        #: What the engine told when containerd was last asked for its root folder, and what was found.
        self._asked: Capabilities | None = None
        self._asked_root = ""
        self._wake = asyncio.Event()
        self._stop = threading.Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="disk usage")

    async def __aenter__(self) -> Self:
        self._unlisten = self._inventory.listen(self._on_change)
        for record in self._inventory.snapshot():
            self._on_change(record.id, None, record)
        self._task = background.keep(self._run, owner="disk usage", name="disk usage")
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._unlisten()
        self._stop.set()
        await background.end(self._task)
        await asyncio.to_thread(self._thread.shutdown)

    # -- answers ---------------------------------------------------------------------------------------------

    def writable_layer(self, container_id: str) -> LayerUsage | None:
        """The last measurement of a container's layer; None before the first one."""
        return self._layers.get(container_id)

    def writable_layers(self) -> LayerUsage | None:
        """The sum of all containers, as old as the oldest measurement; None before the first one."""
        layers = list(self._layers.values())
        if not layers:
            return None
        return LayerUsage(
            measured_at=min(layer.measured_at for layer in layers),
            bytes=sum(layer.bytes for layer in layers),
            inodes=sum(layer.inodes or 0 for layer in layers),
        )

    async def folder(self, features: Capabilities) -> str:
        """The folder that has the images and the writable layers: of the engine, or of the containerd that it uses."""
        if not features.containerd_store:
            return features.root_dir
        if features is not self._asked:
            self._asked_root = await asyncio.to_thread(root_behind, features.containerd_socket)
            self._asked = features
        return self._asked_root or self._store_root or likely_root(features.root_dir)

    # -- the walks -------------------------------------------------------------------------------------------

    def _on_change(self, container_id: str, before: Record | None, after: Record | None) -> None:
        if not isinstance(after, ContainerRecord):
            self._due.pop(container_id, None)
            self._layers.pop(container_id, None)
            self._snapshots.pop(container_id, None)
        elif not isinstance(before, ContainerRecord) or before.state != after.state:
            self._due[container_id] = 0.0
            self._wake.set()

    async def _run(self) -> None:
        while True:
            begun = time.monotonic()
            try:
                worked = await self._work(begun)
            except Exception:
                logger.exception("cannot measure disk usage")
                worked = True
            if worked:
                await asyncio.sleep(min((time.monotonic() - begun) * _REST_BETWEEN, _LONGEST_REST_BETWEEN))
            else:
                await self._idle()

    async def _idle(self) -> None:
        self._wake.clear()
        due = min(self._due.values(), default=math.inf)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(None if due == math.inf else max(0.0, due - time.monotonic())):
                await self._wake.wait()

    async def _work(self, now: float) -> bool:
        """Measure the layer that has waited longest. Returns whether one was due."""
        container_id = min(self._due, key=self._due.__getitem__, default="")
        if not container_id or self._due[container_id] > now:
            return False
        await self._measure_container(container_id)
        return True

    async def _measure_container(self, container_id: str) -> None:
        begun = time.monotonic()
        record = self._inventory.peek(container_id)
        if not isinstance(record, ContainerRecord):
            self._due.pop(container_id, None)
            return
        # Set before the walk, so that a change of state during it can make another one due.
        self._due[container_id] = math.inf
        folder = record.upper_dir or await self._find_snapshot(record)
        tree = await self._measure(folder) if folder else None
        if tree is not None:
            if not tree.whole:
                logger.info("container %s: its writable layer changed while it was measured", container_id)
            usage: LayerUsage | None = LayerUsage(time.time_ns(), tree.bytes, tree.inodes)
        else:
            usage = await self._ask_engine(container_id)
        ended = time.monotonic()
        if self._inventory.peek(container_id) is None:
            return
        if usage is not None:
            self._layers[container_id] = usage
        if record.state == cri.CONTAINER_RUNNING or usage is None:
            rest = max(self._every, _REST * (ended - begun), 0.0 if tree is not None else _ENGINE_EVERY)
            self._due[container_id] = min(self._due.get(container_id, math.inf), ended + rest)

    async def _find_snapshot(self, record: ContainerRecord) -> str:
        if record.pid and record.id not in self._snapshots:
            found = await with_own_thread(upper_dir, record.id)
            if found:
                self._snapshots[record.id] = found
                self._store_root = root_of(found)
        return self._snapshots.get(record.id, "")

    async def _measure(self, folder: str) -> Tree | None:
        """Walk a folder; None if it does not exist or this process does not see it."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, measure, folder, Pace(self._stop))
        except (OSError, Stopped):
            return None

    async def _ask_engine(self, container_id: str) -> LayerUsage | None:
        try:
            inspect = await self._engine.get(
                f"/containers/{container_id}/json", params={"size": "1"}, deadline=_ENGINE_DEADLINE
            )
        except (NotFound, Unavailable):
            # An outage of the engine is logged once elsewhere, not for each container.
            return None
        except ShimError as error:
            logger.warning("container %s: cannot measure its writable layer: %s", container_id, error)
            return None
        return LayerUsage(time.time_ns(), int(inspect.get("SizeRw") or 0), None)
