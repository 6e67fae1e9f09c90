"""Whom the metrics are read of."""

from __future__ import annotations

from dataclasses import dataclass

from dockershim.image_records import ImageRecords
from dockershim.runtime.events import ContainerEvents
from dockershim.runtime.node import Node
from dockershim.watchdog import Watchdog


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of a server."""

    node: Node
    watchdog: Watchdog
    images: ImageRecords
    events: ContainerEvents
