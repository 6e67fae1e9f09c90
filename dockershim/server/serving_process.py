"""The serving process: lock, sockets, gRPC servers, signals, service manager.

After SIGTERM and SIGINT, calls in flight may still end within ``shutdown_grace``. SIGHUP reads the configuration again,
SIGUSR1 logs what the process is doing. Signals may come at any time, even while the server starts.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Final, Protocol
from urllib.parse import quote

import grpc

import background
from dockershim.cri.handlers import Handler
from dockershim.errors import ShimError, StartError
from dockershim.server import log
from dockershim.server.config import Config, ConfigError, flag_name, merge_reload, without_effect
from dockershim.server.grpc_server import Journal, OpenStreams, make_server
from dockershim.server.sockets import Endpoint, InUse, OwnSocket, PassedSocket, instance_lock
from dockershim.server.stacks import dump_at
from dockershim.server.systemd import Notifier, PassedFd, take_passed_fds

logger = logging.getLogger(__name__)

#: Seconds between two looks at what the service manager shows beside the unit.
_STATUS_INTERVAL: Final = 5.0


class Services(Protocol):
    """The services to serve, and what else the process needs of them; see ``wiring.Services``."""

    @property
    def runtime(self) -> Sequence[Handler]: ...
    @property
    def images(self) -> Sequence[Handler]: ...
    @property
    def reload(self) -> Callable[[Config], None]: ...
    @property
    def journal(self) -> Journal | None: ...
    @property
    def summary(self) -> Callable[[], str]: ...


Compose = Callable[[Config], AbstractAsyncContextManager[Services]]


def run(config: Config, load: Callable[[], Config], compose: Compose) -> int:
    """Serve until SIGTERM or SIGINT. ``load`` reads the configuration again, and may raise ConfigError.

    Returns the process's exit code: 0 after a requested stop, 1 if the server could not serve.
    """
    for key in without_effect(config):
        logger.warning("%s is accepted for compatibility and has no effect", flag_name(key))
    try:
        with instance_lock(config.root_directory):
            asyncio.run(_Process(config, load, compose).serve())
    except (InUse, StartError, ShimError, OSError) as error:
        logger.error("cannot start: %s%s", error, "; dockershim must run as root" if os.geteuid() != 0 else "")
        return 1
    except Exception:
        logger.exception("cannot start")
        return 1
    return 0


class _Process:
    def __init__(self, config: Config, load: Callable[[], Config], compose: Compose) -> None:
        self._config = config
        self._load = load
        self._compose = compose
        self._notifier = Notifier.from_environment(os.environ, os.getpid())
        self._passed = list(take_passed_fds(os.environ, os.getpid()))
        self._open_streams = OpenStreams()
        self._signals: asyncio.Queue[signal.Signals] = asyncio.Queue()
        self._ready = False

    async def serve(self) -> None:
        serving = background.child(self._serve(), "serve")
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGHUP, self._signals.put_nowait, signal.SIGHUP)
        dump_at(signal.SIGUSR1)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_stop, number, serving)
        await asyncio.wait([serving])
        if not serving.cancelled():
            serving.result()

    def _on_stop(self, number: signal.Signals, serving: asyncio.Task[None]) -> None:
        logger.info("received %s, shutting down", number.name)
        if self._ready:
            self._signals.put_nowait(number)
        else:
            # There are no calls to wait for yet; the parts that have started clean up after themselves.
            serving.cancel()

    async def _serve(self) -> None:
        async with AsyncExitStack() as stack:
            endpoints = self._endpoints()
            for endpoint in endpoints.values():
                stack.push_async_callback(endpoint.close)
            services = await stack.enter_async_context(self._compose(self._config))
            servers = {name: self._bind(endpoint, name, services) for name, endpoint in endpoints.items()}
            stack.push_async_callback(self._stop, tuple(endpoints.values()), tuple(servers.values()))
            for name, endpoint in endpoints.items():
                await servers[name].start()
                await endpoint.open()
            self._ready = True
            self._notifier.ready()
            tell_status = partial(self._tell_status, services.summary)
            for name, work in (("service manager's watchdog", self._watchdog), ("status", tell_status)):
                await stack.enter_async_context(background.kept(work, owner="service manager", name=name))
            logger.info("serving on %s", ", ".join(endpoints))
            while await self._signals.get() == signal.SIGHUP:
                self._reload(services)

    def _endpoints(self) -> dict[str, Endpoint]:
        """The endpoints by their names in the configuration. Checked before all else: another server may use them."""
        names = filter(None, (self._config.container_runtime_endpoint, self._config.image_service_endpoint))
        return {name: self._endpoint(name) for name in names}

    def _as_flag(self, name: str) -> str:
        is_images = name == self._config.image_service_endpoint
        return f"--{'image-service' if is_images else 'container-runtime'}-endpoint={name}"

    def _endpoint(self, name: str) -> Endpoint:
        try:
            passed = self._take(name)
            if passed is not None:
                return PassedSocket(passed.fd, self._config.state_directory / "sockets")
            return OwnSocket(Path(name.removeprefix("unix://")))
        except (InUse, OSError) as error:
            raise StartError(f"{self._as_flag(name)}: {error}") from error

    def _take(self, endpoint: str) -> PassedFd | None:
        """The socket that systemd passed for an endpoint, None if it is ours to make. Raises StartError."""
        by_name = endpoint.startswith("fd://")
        name, path = endpoint.removeprefix("fd://"), Path(endpoint.removeprefix("unix://"))
        for passed in self._passed:
            # Units of cri-dockerd may give the path on which their socket unit listens.
            if name in ("", passed.name) if by_name else passed.listens_on(path):
                self._passed.remove(passed)
                return passed
        if by_name:
            missing = "socket with this name" if name else "other socket"
            raise StartError(f"{endpoint}: systemd passed no {missing}")
        return None

    def _bind(self, endpoint: Endpoint, name: str, services: Services) -> grpc.aio.Server:
        offered = {"RuntimeService": services.runtime, "ImageService": services.images}
        if self._config.image_service_endpoint:
            own = "ImageService" if name == self._config.image_service_endpoint else "RuntimeService"
            offered = {own: offered[own]}
        server = make_server(offered, self._open_streams, services.journal)
        try:
            server.add_insecure_port(f"unix:{quote(str(endpoint.bind_path))}")
        except RuntimeError as error:
            folder = endpoint.bind_path.parent
            # gRPC does not say why it failed.
            reason = str(error) if os.access(folder, os.W_OK) else f"{folder} is not writable"
            raise StartError(f"{self._as_flag(name)}: {reason}") from error
        return server

    async def _stop(self, endpoints: Sequence[Endpoint], servers: Sequence[grpc.aio.Server]) -> None:
        self._notifier.stopping()
        for endpoint in endpoints:
            endpoint.stop_accepting()
        stops = [background.child(server.stop(self._config.shutdown_grace), "stop serving") for server in servers]
        self._open_streams.end()
        await asyncio.gather(*stops)

    async def _watchdog(self) -> None:
        while self._notifier.watchdog_interval:
            self._notifier.watchdog()
            # Half of the interval, as sd_watchdog_enabled(3) advises: one late turn does not mean a dead process.
            await asyncio.sleep(self._notifier.watchdog_interval / 2)

    async def _tell_status(self, summary: Callable[[], str]) -> None:
        told = ""
        while self._notifier.address:
            if (text := summary()) != told:
                self._notifier.status(text)
                told = text
            await asyncio.sleep(_STATUS_INTERVAL)

    def _reload(self, services: Services) -> None:
        self._notifier.reloading()
        try:
            reload = merge_reload(self._config, self._load())
        except ConfigError as error:
            logger.error("SIGHUP: invalid configuration, keeping the current one: %s", error)
        else:
            self._config = reload.config
            log.configure(reload.config.log_level, reload.config.log_format)
            self._hand_over(services)
            logger.info("SIGHUP: reloaded: %s", ", ".join(reload.applied) or "no reloadable option has changed")
            if reload.need_restart:
                logger.warning("SIGHUP: restart dockershim to apply %s", ", ".join(reload.need_restart))
        self._notifier.ready()

    def _hand_over(self, services: Services) -> None:
        try:
            services.reload(self._config)
        except Exception:
            # A mistake in a reload must not cost the pods of a node their runtime.
            logger.exception("SIGHUP: a component failed to apply the configuration")
