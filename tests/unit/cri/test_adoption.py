"""Pins for the pods of other dockershims."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from dockershim.cri.adoption import adopt
from dockershim.errors import Unavailable
from tests.unit import virtual_time


class ForeignPods:
    """Three pods of another dockershim and one of ours. The engine is away when the steps in ``away`` come."""

    def __init__(self, away: set[int]) -> None:
        self.pinned: list[str] = []
        self._away = away
        self._step = 0

    async def on_engine(self) -> list[Any]:
        self._look()
        records = {name: SimpleNamespace(made_here=name == "ours") for name in ("a", "ours", "b", "c")}
        return [SimpleNamespace(id=name, record=record) for name, record in records.items()]

    @asynccontextmanager
    async def locked(self, sandbox_id: str) -> AsyncIterator[str]:
        self._look()
        yield sandbox_id

    def pin_if_missing(self, pod: str) -> bool:
        self.pinned.append(pod)
        return pod != "b"

    def _look(self) -> None:
        self._step += 1
        if self._step in self._away:
            raise Unavailable("the engine is away")


@pytest.mark.parametrize("away", [set(), {1, 2}, {2}, {3, 4, 5}, {4}], ids=str)
def test_pods_are_adopted_though_the_engine_goes_away(away: set[int], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    pods: Any = ForeignPods(away)
    virtual_time.run(adopt(pods, pods))
    assert pods.pinned == ["a", "b", "c"]
    assert caplog.messages == ["pinned the network namespaces of 2 pods of another dockershim"]
