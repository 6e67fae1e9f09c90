"""Follows a folder of network configurations. It runs no plugins."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

from cni.config import NetworkList, describe_lack, find_network
from loopio import FolderWatch

log = logging.getLogger(__name__)

_DEBOUNCE: Final = 0.1


class ConfigWatcher(FolderWatch):
    """Keeps the network that :func:`cni.find_network` would return, between ``start`` and ``close``.

    ``network`` is the network, or None; then ``reason`` says why, in words for a user. Both are set when ``start``
    returns. Damaged files before the chosen one are logged when they change.
    """

    def __init__(self, conf_dir: Path, *, debounce: float = _DEBOUNCE) -> None:
        # Its subfolders may have a network's plugins.
        super().__init__(conf_dir, self._find, subfolders=True, debounce=debounce)
        self._damaged: list[str] = []
        self.network: NetworkList | None = None
        self.reason = f"{conf_dir} has not been read yet"

    def _find(self) -> bool:
        self.network, found = find_network(self.folder)
        self.reason = "" if self.network else describe_lack(self.folder, found)
        damaged = [str(error) for error in found]
        if damaged != self._damaged:
            self._damaged = damaged
            for error in damaged:
                log.warning("ignoring network configuration: %s", error)
        return False  # nobody is told: users look when they need it
