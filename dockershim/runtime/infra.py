"""The infra image: brought to an engine that has it not."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from dockershim.api.cri.v1 import api_pb2 as cri
from dockershim.engine.client import Engine
from dockershim.infra_image import BUILTIN_INFRA_IMAGE, docker_archive

Pull = Callable[[cri.PullImageRequest], Awaitable[cri.PullImageResponse]]


class InfraImage:
    """``name`` is the image of infra containers: the built-in one, unless the configuration names another."""

    def __init__(self, engine: Engine, configured: str, pull: Pull) -> None:
        self.name = configured or BUILTIN_INFRA_IMAGE
        self._engine = engine
        self._pull = pull

    async def ensure(self) -> None:
        """Load the built-in image, or pull the configured one."""
        if self.name != BUILTIN_INFRA_IMAGE:
            await self._pull(cri.PullImageRequest(image=cri.ImageSpec(image=self.name)))
            return
        architecture = (await self._engine.get("/info"))["Architecture"]
        async with self._engine.stream(
            "POST",
            "/images/load",
            params={"quiet": "1"},
            data=docker_archive(architecture),
            headers={"Content-Type": "application/x-tar"},
        ) as response:
            await response.read()
