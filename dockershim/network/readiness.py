"""Whether the CNI plugins of the current configuration can serve a pod. Answers are kept while they can be valid."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import background
import cni
from dockershim.errors import FailedPrecondition

#: Seconds until the plugins are asked again (STATUS, since version 1.1.0), when they were ready and when not.
_AGAIN_WHEN_READY = 30.0
_AGAIN_WHEN_NOT = 5.0
#: Seconds that a caller who only asks for the status waits.
PATIENCE = 3.0


class Readiness:
    """``network`` returns the current configuration. An answer is kept until it is due again or that changes."""

    def __init__(self, runtime: cni.Runtime, network: Callable[[], cni.NetworkList | None]) -> None:
        self._runtime = runtime
        self._network = network
        self._examined: cni.NetworkList | None = None
        self._validated: cni.NetworkList | None = None
        self._due = 0.0
        self._failure: FailedPrecondition | None = None
        self._examination: asyncio.Task[None] | None = None

    async def check(self, patience: float) -> None:
        """Raises FailedPrecondition if no pod can be attached; within ``patience`` seconds also if a plugin hangs."""
        end = time.monotonic() + patience
        # Repeated if the configuration has changed during the examination.
        while (network := self._network()) is not None:
            try:
                self._runtime.find_plugins(network)
            except cni.PluginNotFound as error:
                # If the plugin comes back, it may be another version.
                self._examined = self._validated = None
                raise _failure(network, error) from error
            if network is self._examined and time.monotonic() < self._due:
                if self._failure is not None:
                    raise FailedPrecondition(str(self._failure)) from self._failure
                return
            examination = self._under_way(network)
            done, _ = await asyncio.wait([examination], timeout=max(0.0, end - time.monotonic()))
            if not done:
                raise FailedPrecondition(f"the plugins of CNI network {network.name!r} do not respond")
            if (failure := examination.exception()) is not None:
                told = f"CNI network {network.name!r} cannot be checked; see the log for details"
                raise FailedPrecondition(told) from failure

    def _under_way(self, network: cni.NetworkList) -> asyncio.Task[None]:
        """The examination that is under way, even of another network; otherwise a new one of this network."""
        if self._examination is None or self._examination.done():
            name = f"examine CNI network {network.name}"
            self._examination = background.start(self._examine(network), owner="network", name=name)
        return self._examination

    async def close(self) -> None:
        """End an examination that is under way."""
        await background.end(self._examination)

    async def _examine(self, network: cni.NetworkList) -> None:
        try:
            if network is not self._validated:
                await self._runtime.validate(network)
                self._validated = network
            await self._runtime.status(network)
        except cni.CNIError as error:
            self._failure = _failure(network, error)
        else:
            self._failure = None
        self._examined = network
        self._due = time.monotonic() + (_AGAIN_WHEN_NOT if self._failure else _AGAIN_WHEN_READY)


def _failure(network: cni.NetworkList, error: cni.CNIError) -> FailedPrecondition:
    return FailedPrecondition(f"CNI network {network.name!r}: {error}")
