"""A node of the simulation."""

from __future__ import annotations

from tests.unit.cri.conftest import node

__all__ = ["node"]
