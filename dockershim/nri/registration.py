"""Plugins come and go: those of a folder are started with the server, others connect to a socket."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import background
from cni import read_bounded
from dockershim.common.answers import when_answered
from dockershim.common.listener import is_served
from dockershim.errors import HookFailure, StartError
from dockershim.interceptors import Chain
from dockershim.nri.connection import CLOSED
from dockershim.nri.events import Events
from dockershim.nri.interceptor import NRI
from dockershim.nri.plugin import Plugin, Rejected, Timeouts

logger = logging.getLogger(__name__)

_FILE_NAME: Final = re.compile(r"[0-9]{2}-[^/]+")
_LONGEST_CONFIG: Final = 1 << 20
#: Plugins at once; each can make us hold some 20 MiB.
_MOST_PLUGINS: Final = 50
#: Seconds for which the server waits at its start until its own plugins know what runs. An engine may be away.
_FIRST_SYNCHRONIZE: Final = 10.0
#: One that was dropped for being late twice within so many seconds is told what runs again only after a pause, of so
#: many times what it may take for an answer. Every pod waits while a plugin is waited for.
_RECENTLY: Final = 60.0
_PAUSE_FACTOR: Final = 10
#: Seconds until the next connection is taken if one could not be.
_ACCEPT_PAUSE: Final = 0.5
_FOLDER_MODE: Final = 0o700
_SOCKET_MODE: Final = 0o600


@dataclass(frozen=True, slots=True)
class Settings:
    """Where plugins are. ``socket`` is None if no plugin may connect from outside."""

    socket: Path | None
    plugins: Path
    configs: Path


@asynccontextmanager
async def nri_plugins(
    chain: Chain,
    nri: NRI,
    settings: Settings,
    timeouts: Callable[[], Timeouts],
    engine_is_known: Callable[[], Awaitable[object]],
) -> AsyncIterator[None]:
    """Have calls pass NRI plugins for the length of a block. Raises StartError if the socket cannot be used.

    ``engine_is_known`` raises ShimError while it is not known what runs.
    """
    service = _Service(nri.events, settings, timeouts, engine_is_known)
    listener = await asyncio.to_thread(_listen, settings.socket) if settings.socket is not None else None
    place = chain.place()
    place.take(nri)
    try:
        await service.start_installed()
        if listener is not None:
            service.accept(listener)
        yield
    finally:
        place.leave()
        await service.close()
        if listener is not None and settings.socket is not None:
            _stop_listening(listener, settings.socket)
        await nri.events.close()


class _Service:
    def __init__(
        self,
        events: Events,
        settings: Settings,
        timeouts: Callable[[], Timeouts],
        engine_is_known: Callable[[], Awaitable[object]],
    ) -> None:
        self._events = events
        self._settings = settings
        self._timeouts = timeouts
        self._engine_is_known = engine_is_known
        #: The task that reads from each plugin, also of one that is not registered yet.
        self._running: dict[asyncio.Task[None], Plugin] = {}
        self._tasks = background.Tasks("nri")
        self._accepting: asyncio.Task[None] | None = None
        self._late = _Late()

    async def close(self) -> None:
        """End all connections, and the programs that we started."""
        await background.end(self._accepting)
        await self._tasks.close()
        for plugin in self._running.values():
            plugin.close(CLOSED)
        if self._running:
            await asyncio.wait(set(self._running))

    # -- plugins of the folder -------------------------------------------------------------------------------

    async def start_installed(self) -> None:
        """Start the programs of the folder, in the order of their names, and tell them what runs, in the same order."""
        started = []
        for path in await asyncio.to_thread(_executables, self._settings.plugins):
            try:
                started.append(await self._start(path))
            except OSError as error:
                logger.error("NRI plugin %s cannot be started: %s", path.name, error.strerror)
        # The server's start waits for this: several that say nothing cost the time of one.
        are_configured = await asyncio.gather(*map(self._configure, started))
        if configured := list(itertools.compress(started, are_configured)):
            joining = self._tasks.start(self._join_all(configured), "tell the installed NRI plugins what runs")
            await asyncio.wait([joining], timeout=_FIRST_SYNCHRONIZE)

    async def _configure(self, plugin: Plugin) -> bool:
        """Whether an installed plugin has registered and has its configuration."""
        try:
            await plugin.register(await asyncio.to_thread(_read_config, self._settings.configs, plugin.name))
        except Rejected as error:
            self._reject(plugin, error)
            return False
        return True

    async def _start(self, path: Path) -> Plugin:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        with theirs:
            # Nothing else, as a plugin may expect: not even a PATH.
            environment = {
                "NRI_PLUGIN_NAME": path.name[3:],
                "NRI_PLUGIN_IDX": path.name[:2],
                "NRI_PLUGIN_SOCKET": str(theirs.fileno()),
            }
            try:
                process = await asyncio.create_subprocess_exec(
                    path,
                    env=environment,
                    pass_fds=(theirs.fileno(),),
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=asyncio.subprocess.DEVNULL,
                )
            except BaseException:
                ours.close()
                raise
        plugin = Plugin(ours, self._timeouts, self._events.update_containers, path.name)
        self._read(plugin, process)
        return plugin

    async def _join_all(self, plugins: list[Plugin]) -> None:
        async with self._events.joining():
            for plugin in plugins:
                await self._join(plugin)

    # -- plugins that connect --------------------------------------------------------------------------------

    def accept(self, listener: socket.socket) -> None:
        """Take connections from now on."""
        accept = partial(self._accept, listener)
        self._accepting = background.keep(accept, owner="nri", name="accept connections of NRI plugins")

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                sock, _ = await loop.sock_accept(listener)
            except OSError as error:
                logger.warning("NRI plugins cannot connect: %s", error.strerror)
                await asyncio.sleep(_ACCEPT_PAUSE)
                continue
            if len(self._running) >= _MOST_PLUGINS:
                logger.warning("an NRI plugin was rejected: %d are already connected", len(self._running))
                sock.close()
                # One that connects without end would keep this busy, and fill the log.
                await asyncio.sleep(_ACCEPT_PAUSE)
                continue
            plugin = Plugin(sock, self._timeouts, self._events.update_containers)
            reading = self._read(plugin)
            # One that says nothing keeps no other waiting.
            self._tasks.start(self._take(plugin, reading), "register an NRI plugin that has connected")

    async def _take(self, plugin: Plugin, reading: asyncio.Task[None]) -> None:
        try:
            await plugin.register("")
            await self._pause(plugin, reading)
            async with self._events.joining():
                await self._join(plugin)
        except Rejected as error:
            self._reject(plugin, error)
        except Exception:
            plugin.close("it could not be synchronized")
            raise

    async def _pause(self, plugin: Plugin, reading: asyncio.Task[None]) -> None:
        """Wait if it was late too often. To the plugin it looks as if others were told before it."""
        pause = self._late.pause(plugin.name, asyncio.get_running_loop().time())
        if pause > 0:
            logger.warning("NRI plugin %s timed out twice: synchronizing with it in %.1f s", plugin.name, pause)
            await asyncio.wait([reading], timeout=pause)

    # -- both ------------------------------------------------------------------------------------------------

    async def _join(self, plugin: Plugin) -> None:
        await when_answered(self._engine_is_known)
        try:
            await self._events.add(plugin)
        except Rejected as error:
            self._reject(plugin, error)
        except HookFailure as error:
            logger.warning("NRI plugin %s: %s", plugin.name, error)

    def _reject(self, plugin: Plugin, error: Rejected) -> None:
        logger.warning("NRI plugin %s was rejected: %s", plugin.name or "(without a name)", error)
        plugin.close(str(error))

    def _read(self, plugin: Plugin, process: asyncio.subprocess.Process | None = None) -> asyncio.Task[None]:
        task = background.start(self._run(plugin, process), owner="nri", name=f"read from NRI plugin {plugin.name}")
        self._running[task] = plugin
        task.add_done_callback(self._running.pop)
        return task

    async def _run(self, plugin: Plugin, process: asyncio.subprocess.Process | None) -> None:
        try:
            await plugin.run()
        finally:
            if plugin.was_late:
                now = asyncio.get_running_loop().time()
                self._late.note(plugin.name, now, self._timeouts().request * _PAUSE_FACTOR)
            if self._events.remove(plugin):
                level = logging.INFO if plugin.end == CLOSED else logging.WARNING
                logger.log(level, "NRI plugin %s disconnected: %s", plugin.name, plugin.end)
            if process is not None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()


class _Late:
    """Plugins, by name, that were dropped for being late. Times are those of the event loop."""

    def __init__(self) -> None:
        self._dropped: dict[str, float] = {}
        self._paused: dict[str, float] = {}

    def note(self, name: str, now: float, pause: float) -> None:
        """It was dropped; ``pause`` is in seconds."""
        # Names are of the plugins' choice, so none is kept for longer than it counts.
        self._dropped = {one: when for one, when in self._dropped.items() if when > now - _RECENTLY}
        self._paused = {one: until for one, until in self._paused.items() if until > now}
        if name in self._dropped:
            self._paused[name] = now + pause
        self._dropped[name] = now

    def pause(self, name: str, now: float) -> float:
        """How many seconds it has to wait; negative, or 0, if it has not to."""
        return self._paused.get(name, now) - now


def _executables(folder: Path) -> list[Path]:
    """The plugins of the folder, in the order of their names."""
    found = []
    try:
        entries = sorted(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        logger.error("NRI plugins of %s cannot be started: %s", folder, error.strerror)
        return []
    for path in entries:
        if not path.is_file() or not path.stat().st_mode & 0o111:
            continue
        if _FILE_NAME.fullmatch(path.name):
            found.append(path)
        else:
            logger.error("%s: ignored, as the name of an NRI plugin's file must be two digits, a dash and a name", path)
    return found[:_MOST_PLUGINS]


def _read_config(folder: Path, name: str) -> str:
    """The configuration of a plugin of the folder; empty if there is none. Raises Rejected."""
    for path in _config_files(folder, name):
        try:
            return read_bounded(path, _LONGEST_CONFIG).decode()
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as error:
            raise Rejected(f"its configuration {path} cannot be read: {error}") from error
    return ""


def _config_files(folder: Path, name: str) -> Iterator[Path]:
    yield folder / f"{name}.conf"
    yield folder / f"{name[3:]}.conf"


def _listen(path: Path) -> socket.socket:
    """Listen at ``path``, which only this user can reach. Replaces a stale socket. Raises StartError."""
    made = path.with_name(f".{path.name}.{os.getpid()}")
    listener = socket.socket(socket.AF_UNIX)
    try:
        path.parent.mkdir(mode=_FOLDER_MODE, parents=True, exist_ok=True)
        if path.exists() and not path.is_socket():
            raise StartError(f"--nri-socket={path}: exists and is not a socket")
        if is_served(path):
            raise StartError(
                f"--nri-socket={path}: another runtime serves NRI there; turn NRI off in it, or choose another path"
            )
        made.unlink(missing_ok=True)
        listener.bind(os.fsencode(made))
        made.chmod(_SOCKET_MODE)
        listener.listen()
        made.rename(path)
    except OSError as error:
        listener.close()
        with contextlib.suppress(OSError):
            made.unlink()
        raise StartError(f"--nri-socket={path}: {error.strerror or error}") from error
    except StartError:
        listener.close()
        raise
    listener.setblocking(False)
    return listener


def _stop_listening(listener: socket.socket, path: Path) -> None:
    listener.close()
    with contextlib.suppress(OSError):
        if not is_served(path):  # another runtime's, since
            path.unlink()
