"""The event loop reads statistics, a few at a time."""

from __future__ import annotations

import asyncio
import itertools
import time
from unittest.mock import Mock

from dockershim.cri.stats import Statistics


async def test_others_have_their_turn_while_a_list_is_read() -> None:
    statistics = Statistics(Mock(), Mock(), Mock(), Mock())
    done: list[int] = []
    seen: list[int] = []

    def read(number: int) -> int:
        time.sleep(0.001)
        done.append(number)
        return number

    async def other() -> None:
        while len(done) < 30:
            seen.append(len(done))
            await asyncio.sleep(0)

    _, found = await asyncio.gather(other(), statistics._read(read, range(30)))
    assert found == done == list(range(30))
    assert len(seen) > 5
    assert max(after - before for before, after in itertools.pairwise(seen)) < 15
