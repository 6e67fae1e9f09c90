"""A node of the simulation."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.cri.sim_node import SimNode

_MEMORY = Path("/dev/shm")


@pytest.fixture
def node() -> Iterator[SimNode]:
    """Its disk is in memory: the server syncs what it writes."""
    with tempfile.TemporaryDirectory(dir=_MEMORY if _MEMORY.is_dir() else None) as folder:
        made = SimNode(Path(folder))
        yield made
        made.simulation.end()
