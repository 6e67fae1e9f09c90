"""Containers that exist for NRI plugins to be asked about, and for nobody else yet. Used only when NRI is on.

Plugins are asked before a container is made, by the id that it will have, and an engine chooses the id itself. So the
container is made first, under a name by which no shim takes it for a pod's. If plugins leave it as it is, it gets its
own name, and with it the pod gets it. Otherwise another one is made in its place.
"""

from __future__ import annotations

import hashlib
import json
import logging
import secrets
from pathlib import Path
from typing import Any, Final

from dockershim.common.background import when_answered
from dockershim.common.rollback import Rollback
from dockershim.cri.engine_containers import EngineContainers
from dockershim.engine.client import Engine
from dockershim.errors import ShimError
from dockershim.translate.labels import CONTAINER_TYPE, TYPE_LABEL

logger = logging.getLogger(__name__)

_PREFIX: Final = "dockershim-draft-"


class Drafts:
    """The drafts of one server, which is known by its ``state`` folder."""

    def __init__(self, engine: Engine, containers: EngineContainers, state: Path) -> None:
        self._engine = engine
        self._containers = containers
        owner = hashlib.sha256(bytes(state.resolve())).hexdigest()[:8]
        self._prefix = f"{_PREFIX}{owner}-"
        #: What the names of this process begin with.
        self._own = f"{self._prefix}{secrets.token_hex(4)}-"

    async def create(self, body: dict[str, Any], undo: Rollback) -> str:
        """Make a draft and return its id. ``undo`` removes it, whatever its name is by then. Raises ShimError."""
        return await self._containers.creator(f"{self._own}{secrets.token_hex(8)}", body, undo)()

    async def remove(self, container_id: str) -> None:
        """Remove a draft in whose place there is another container. What is left is removed after a restart."""
        try:
            await self._containers.remove(container_id)
        except ShimError as error:
            logger.warning("container %s, which NRI plugins were asked about, is left: %s", container_id, error)

    async def remove_leftovers(self) -> None:
        """Remove what this server has left when it was killed, once the engine answers."""

        async def listed() -> list[dict[str, Any]]:
            params = {"all": "1", "filters": json.dumps({"label": [f"{TYPE_LABEL}={CONTAINER_TYPE}"]})}
            found: list[dict[str, Any]] = await self._engine.get("/containers/json", params=params)
            return found

        for container in await when_answered(listed):
            names = [name.removeprefix("/") for name in container.get("Names") or ()]
            # A name tells: anybody can write a label into an image, and no image can choose the name.
            if any(name.startswith(self._prefix) and not name.startswith(self._own) for name in names):
                logger.warning("a killed server has left container %s; removing it", container["Id"])
                await self.remove(container["Id"])
