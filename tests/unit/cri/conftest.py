"""A node of the simulation."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sim.disk import memory_folder
from tests.unit.cri.sim_node import SimNode


@pytest.fixture
def node() -> Iterator[SimNode]:
    """Its disk is in memory."""
    with tempfile.TemporaryDirectory(dir=memory_folder()) as folder:
        made = SimNode(Path(folder))
        yield made
        made.simulation.end()
