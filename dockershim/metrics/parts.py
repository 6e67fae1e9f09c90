"""Whom the metrics are read of."""

from __future__ import annotations

from dataclasses import dataclass

from dockershim.cri.events import ContainerEvents
from dockershim.cri.node import Node
from dockershim.state.image_records import ImageRecords
from dockershim.state.watchdog import Watchdog


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of a server."""

    node: Node
    watchdog: Watchdog
    images: ImageRecords
    events: ContainerEvents
