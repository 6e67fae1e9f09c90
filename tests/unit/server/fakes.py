"""Fake services, and a server process that serves them: ``python -m tests.unit.server.fakes <flags>``.

Only what the services do is fake: command line, configuration, sockets, signals and gRPC are the real ones.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from dockershim.api.cri.v1 import api_pb2
from dockershim.cri.handlers import Handler
from dockershim.server import cli, log
from dockershim.server.config import Config
from tests.handlers import handlers_of

logger = logging.getLogger("fakes")

# Seconds that the parts take to start, to have a moment in which to stop the process.
START_DELAY = "FAKES_START_DELAY"


class FakeRuntime:
    """Each call says something about the process around it."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.running = 0

    async def version(self, request: Any) -> Any:
        return api_pb2.VersionResponse(version=request.version, runtime_name="fake")

    async def status(self, request: Any) -> Any:
        """The reloadable part of the configuration, as the services have it."""
        return api_pb2.StatusResponse(info={"log_level": self.config.log_level})

    async def exec_sync(self, request: Any) -> Any:
        """Takes ``timeout`` tenths of a second."""
        self.running += 1
        await asyncio.sleep(request.timeout / 10)
        return api_pb2.ExecSyncResponse(stdout=b"done")

    async def list_containers(self, request: Any) -> Any:
        """A container for each exec_sync that has begun."""
        return api_pb2.ListContainersResponse(containers=[api_pb2.Container() for _ in range(self.running)])

    async def get_container_events(self, request: Any) -> AsyncIterator[Any]:
        yield api_pb2.ContainerEventResponse(container_id="first")
        await asyncio.Event().wait()


class FakeImages:
    async def list_images(self, request: Any) -> Any:
        return api_pb2.ListImagesResponse(images=[api_pb2.Image(id="one")])


@dataclass(frozen=True, slots=True)
class FakeServices:
    runtime: list[Handler]
    images: list[Handler]
    reload: Callable[[Config], None]
    summary: Callable[[], str]
    journal: None = None


@asynccontextmanager
async def fake_compose(config: Config) -> AsyncIterator[FakeServices]:
    runtime = FakeRuntime(config)
    logger.info("parts are starting")
    await asyncio.sleep(float(os.environ.get(START_DELAY, "0")))

    def reload(config: Config) -> None:
        runtime.config = config

    handlers = handlers_of("RuntimeService", runtime), handlers_of("ImageService", FakeImages())
    yield FakeServices(*handlers, reload, lambda: f"{runtime.running} calls,\nall fake")
    with log.fields(pod="none"):
        logger.info("parts have ended")


if __name__ == "__main__":
    sys.exit(cli.main(compose=fake_compose))
