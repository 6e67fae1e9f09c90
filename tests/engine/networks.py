"""When the server has read a changed folder of network configurations."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Final

from tests.node.server import Server
from tests.waiting import wait_until

CONFIGURATIONS: Final = Path("/etc/cni/net.d")
_numbers = itertools.count(1)


def read_by(server: Server, folder: Path = CONFIGURATIONS) -> None:
    """Wait until the server has read what stands in the folder now.

    It warns of each damaged file before the one that it chooses: one is put there, and its name waited for.
    """
    damaged = folder / f"00-0-damaged-{next(_numbers)}.conflist"
    before = server.log.stat().st_size
    damaged.write_text("{")
    try:
        wait_until(
            lambda: damaged.name.encode() in server.log.read_bytes()[before:],
            lambda: f"{server.name} reads {folder}; its log:\n{server.log_end()}",
        )
    finally:
        damaged.unlink()
