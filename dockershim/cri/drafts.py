"""Containers that exist for NRI plugins to be asked about, and for nobody else yet. Used only when NRI is on.

Plugins are asked before a container is made, by the id that it will have, and an engine chooses the id itself. So the
container is made first, under a name by which no shim takes it for a pod's. If plugins leave it as it is, it gets its
own name, and with it the pod gets it. Otherwise another one is made in its place.
"""

from __future__ import annotations

import hashlib
import logging
import secrets
from pathlib import Path
from typing import Any, Final

from dockershim.common.rollback import Rollback
from dockershim.cri.engine_containers import EngineContainers
from dockershim.errors import ShimError
from dockershim.translate.labels import CONTAINER_TYPE, TYPE_LABEL

logger = logging.getLogger(__name__)

_PREFIX: Final = "dockershim-draft-"


class Drafts:
    """The drafts of one server, which is known by its ``state`` folder."""

    def __init__(self, containers: EngineContainers, state: Path) -> None:
        self._containers = containers
        owner = hashlib.sha256(bytes(state.resolve())).hexdigest()[:8]
        self._prefix = f"{_PREFIX}{owner}-"
        #: What the names of this process begin with.
        self._own = f"{self._prefix}{secrets.token_hex(4)}-"

    async def create(self, body: dict[str, Any], undo: Rollback) -> str:
        """Make a draft and return its id. ``undo`` removes it, whatever its name is by then. Raises ShimError."""
        return await self._containers.creator(f"{self._own}{secrets.token_hex(8)}", body, undo, unseen=True)()

    async def remove(self, container_id: str) -> None:
        """Remove a draft in whose place there is another container, now or later."""
        try:
            await self._containers.remove(container_id)
        except ShimError as error:
            logger.warning("container %s, created for NRI plugins, cannot be removed: %s", container_id, error)
            self._containers.remove_later(container_id)

    async def remove_leftovers(self) -> None:
        """Remove what a killed server has left, once the engine answers."""

        def is_left(name: str) -> bool:
            return name.startswith(self._prefix) and not name.startswith(self._own)

        await self._containers.remove_leftovers(f"{TYPE_LABEL}={CONTAINER_TYPE}", is_left)
