"""A server in a simulation: starts, serves the calls of the CRI, stops, or is killed."""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from google.protobuf.message_factory import GetMessageClass

from background import tasks
from dockershim.api.cri.v1 import api_pb2 as cri
from dockershim.common import rollback, timed
from dockershim.server.config import Config
from dockershim.server.wiring import Services, compose
from tests.sim.loop import Killed, SimLoop, across
from tests.sim.world import SimWorld

_METHODS: Final = {
    method.name: method
    for service in ("RuntimeService", "ImageService")
    for method in cri.DESCRIPTOR.services_by_name[service].methods
}

#: Files that a server reads again and again, and never closes.
_READ_AGAIN: Final = Path("/sys/kernel/mm")


def sim_config(folder: Path, **options: Any) -> Config:
    """A configuration whose files are in ``folder``.

    Metrics, the page and traces are off: they have sockets and threads of libraries. NRI and the port for exec can be
    on: those are sockets of asyncio. Hook servers are models; a file for each is in ``hooks.d``.
    """
    defaults: dict[str, Any] = {
        "root_directory": folder / "root",
        "state_directory": folder / "run" / "dockershim",
        "cni_conf_dir": folder / "net.d",
        "cni_bin_dir": (folder / "bin",),
        "cni_cache_dir": folder / "cni-cache",
        "runtime_hooks_dir": folder / "hooks.d",
        "nri_socket": folder / "nri.sock",
        "nri_plugin_dir": folder / "nri-plugins",
        "nri_plugin_config_dir": folder / "nri.d",
        "streaming_bind_addr": "127.0.0.1:0",
        "docker_endpoint": f"unix://{folder}/engine.sock",
    }
    return Config(**defaults | options)


def write_network(config: Config, network: str, *plugins: str) -> None:
    """Make the folders of CNI, with this configuration and programs of these names, which are never run."""
    config.cni_conf_dir.mkdir()
    (config.cni_conf_dir / "10-sim.conflist").write_text(network)
    config.cni_bin_dir[0].mkdir()
    for name in plugins:
        program = config.cni_bin_dir[0] / name
        program.touch()
        program.chmod(0o755)


class SimServer:
    """One life of a server."""

    def __init__(self, world: SimWorld, config: Config) -> None:
        self.world = world
        self.config = config
        self.loop: SimLoop = world.simulation.process("server")
        self._services: Services | None = None
        self._life: asyncio.Task[None] | None = None

    @property
    def is_alive(self) -> bool:
        return not self.loop.is_dead and self._life is not None and not self._life.done()

    async def start(self) -> None:
        """Compose the server, and wait until it serves. Raises what composing raises, and Died."""
        composed: asyncio.Event
        self._stopping = asyncio.Event()

        async def live() -> None:
            async with compose(self.config, self.world.of_process()) as self._services:
                composed.set()
                await self._stopping.wait()

        async def begin() -> None:
            nonlocal composed
            composed, self._stopping = asyncio.Event(), asyncio.Event()
            self._life = asyncio.create_task(live(), name="server")
            waiting = asyncio.create_task(composed.wait())
            await asyncio.wait([self._life, waiting], return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()
            if self._life.done():
                self._life.result()

        await across(self.loop, begin, "start the server")

    async def stop(self) -> None:
        """End it as SIGTERM does."""
        life = self._life
        assert life is not None

        async def end() -> None:
            self._stopping.set()
            await life

        await across(self.loop, end, "stop the server")
        self._bury()

    def kill(self) -> None:
        """End it as SIGKILL does. Plugins that run go on, and its own processes see that it has gone."""
        self.world.simulation.kill(self.loop)
        self._bury()

    def kill_in_write(self, changes: int) -> None:
        """Kill it in the middle of what a thread of it writes: right before the change of the disk with this number."""
        left = changes

        def change(_: str) -> None:
            nonlocal left
            if self.world.simulation.working is self.loop:
                left -= 1
                if not left:
                    self.kill()
                if self.loop.is_dead:
                    raise Killed

        self.world.disk.on_change = change

    def _bury(self) -> None:
        self.world.simulation.kill(self.loop)
        _forget_process()
        self.world.children.leave(self.loop)
        _close_files(self.world, self.config.state_directory / "cni", self.config.cni_cache_dir)
        self._services = self._life = None

    async def call(self, name: str, request: Any) -> Any:
        """A call of the CRI by its name, as RunPodSandbox. Raises ShimError and Died."""
        run = self._handler(name)
        response_type = GetMessageClass(_METHODS[name].output_type)

        async def answer() -> bytes:
            found: bytes = (await run(request)).SerializeToString()
            return found

        return response_type.FromString(await across(self.loop, answer, name))

    async def stream(self, name: str, request: Any) -> AsyncIterator[Any]:
        """A call of the CRI with a stream of answers."""
        responses: Any = None
        response_type = GetMessageClass(_METHODS[name].output_type)

        async def following() -> bytes | None:
            nonlocal responses
            responses = responses or self._handler(name)(request)
            found = await anext(responses, None)
            return None if found is None else found.SerializeToString()

        async def close() -> None:
            if responses is not None:
                await responses.aclose()

        try:
            while (body := await across(self.loop, following, name)) is not None:
                yield response_type.FromString(body)
        finally:
            if not self.loop.is_dead:
                await across(self.loop, close, f"end of {name}")

    def _handler(self, name: str) -> Any:
        assert self._services is not None, "it was started"
        method = _METHODS[name]
        handlers = (*self._services.runtime, *self._services.images)
        return next(one.serve for one in handlers if one.request.DESCRIPTOR is method.input_type)


def _forget_process() -> None:
    """What the modules of the server remember of a process, as if its memory were gone."""
    for of_process in (rollback._busy, tasks._running):
        of_process.clear()
    timed._subscribers.update(dict.fromkeys(timed.Kind, ()))


def _close_files(world: SimWorld, *locks: Path) -> None:
    """What the kernel does at the end of a process, for files of which no object knows.

    Locks of plugins that run on stay held.
    """
    held = {descriptor for inherited in world.inherited.values() for descriptor in inherited}
    # Texts, as there are many: paths would take most of the time of a test that kills servers.
    for descriptor in os.listdir("/proc/self/fd"):  # noqa: PTH208
        with suppress(OSError):
            path = os.readlink(f"/proc/self/fd/{descriptor}")  # noqa: PTH115
            if path.startswith(tuple(f"{folder}/" for folder in locks)) and int(descriptor) not in held:
                fcntl.flock(int(descriptor), fcntl.LOCK_UN)
            elif path.startswith(f"{_READ_AGAIN}/"):
                os.close(int(descriptor))
