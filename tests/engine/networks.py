"""When the server has read a changed folder of network configurations."""

from __future__ import annotations

import itertools
import time
from pathlib import Path
from typing import Final

from tests.node.server import Server

CONFIGURATIONS: Final = Path("/etc/cni/net.d")
_TIMEOUT: Final = 20.0
_numbers = itertools.count(1)


def read_by(server: Server, folder: Path = CONFIGURATIONS) -> None:
    """Wait until the server has read what stands in the folder now. AssertionError after _TIMEOUT seconds.

    It warns of each damaged file before the one that it chooses: one is put there, and its name waited for.
    """
    damaged = folder / f"00-0-damaged-{next(_numbers)}.conflist"
    before = server.log.stat().st_size
    damaged.write_text("{")
    try:
        end = time.monotonic() + _TIMEOUT
        while damaged.name.encode() not in server.log.read_bytes()[before:]:
            assert time.monotonic() < end, f"{server.name} does not read {folder}; its log:\n{server.log_end()}"
            time.sleep(0.02)
    finally:
        damaged.unlink()
