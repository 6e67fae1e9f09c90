"""Follows a folder of network configurations. It runs no plugins."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from cni.config import NetworkList, describe_lack, find_network
from loopio import FolderWatch

log = logging.getLogger(__name__)

_DEBOUNCE: Final = 0.1


class ConfigWatcher:
    """Keeps the network that :func:`cni.find_network` would return.

    ``network`` is the network, or None; then ``reason`` says why, in words for a user. Both are set when :meth:`start`
    returns. The folder is read ``debounce`` seconds after the first event of a change, so that a burst of events leads
    to one reading. If the result changes, ``on_change`` is called and ``changed`` is set; its waiters must clear it.
    Damaged files before the chosen one are logged when they change.
    """

    def __init__(
        self, conf_dir: Path, on_change: Callable[[], None] | None = None, *, debounce: float = _DEBOUNCE
    ) -> None:
        self._conf_dir = conf_dir.absolute()
        self._on_change = on_change
        # Its subfolders may have a network's plugins.
        self._watch = FolderWatch(self._conf_dir, self._read, self._tell, subfolders=True, debounce=debounce)
        self._damaged: list[str] = []
        self.network: NetworkList | None = None
        self.reason = f"{conf_dir} has not been read yet"
        self.changed = asyncio.Event()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def start(self) -> None:
        """Read the folder and begin to watch it. Without inotify, the folder is read every 5 s."""
        await self._watch.start()

    async def close(self) -> None:
        """Stop watching; ``network`` and ``reason`` stay as they are. May be called twice."""
        await self._watch.close()

    def _read(self) -> bool:
        """Read the folder. Returns whether ``network`` or ``reason`` has changed."""
        before = (self.network, self.reason)
        self.network, damaged = find_network(self._conf_dir)
        self.reason = "" if self.network else describe_lack(self._conf_dir, damaged)
        self._report([str(error) for error in damaged])
        return before != (self.network, self.reason)

    def _report(self, damaged: list[str]) -> None:
        if damaged != self._damaged:
            self._damaged = damaged
            for error in damaged:
                log.warning("ignoring network configuration: %s", error)

    def _tell(self) -> None:
        self.changed.set()
        if self._on_change is not None:
            self._on_change()
