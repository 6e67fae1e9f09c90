"""The parts of the server that the metrics are read from."""

from __future__ import annotations

from dataclasses import dataclass

import streaming
from dockershim.cri.events import ContainerEvents
from dockershim.logs.container_logs import ContainerLogs
from dockershim.network.pod_network import PodNetwork
from dockershim.state.checkpoints import Checkpoints
from dockershim.state.engine_info import EngineInfo
from dockershim.state.follower import EngineFollower
from dockershim.state.image_records import ImageRecords
from dockershim.state.inventory import Inventory
from dockershim.state.pods import Pods
from dockershim.state.watchdog import Watchdog


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of a server. ``network`` is who gives new pods their network."""

    pods: Pods
    inventory: Inventory
    checkpoints: Checkpoints
    follower: EngineFollower
    info: EngineInfo
    watchdog: Watchdog
    images: ImageRecords
    events: ContainerEvents
    logs: ContainerLogs
    network: PodNetwork
    streams: streaming.Server
