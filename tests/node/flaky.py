"""`python -m tests.node.flaky`: the tests that failed beside others lately and then passed alone, with the days.

The record is in the cache, so that it counts the runs of all clones. A test that is in it twice is fixed or removed.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Final

from tests.node.cache import CACHE, locked, say

#: A line of JSON for each time that a test was flaky.
RECORD: Final = CACHE / "flaky-tests.jsonl"
#: What is older may have been fixed.
LATELY: Final = timedelta(days=30)
#: If more tests than these fail in a run, they fail for a reason of their own, and are not run once more.
MOST: Final = 5


def report(tests: Iterable[str]) -> None:
    """Note that these tests were flaky now, and print the line of each."""
    now = datetime.now(UTC)
    names = set(tests)
    add(names, now)
    for test, line in lines(now).items():
        if test in names:
            say(line)


def add(tests: Iterable[str], now: datetime) -> None:
    """Note that these tests were flaky, and forget what was before LATELY."""
    with locked("flaky"):
        known = _read(now)
        known += [(test, now) for test in tests]
        lines = (json.dumps({"test": test, "time": when.isoformat(timespec="seconds")}) for test, when in known)
        written = RECORD.with_suffix(".new")
        written.write_text("".join(f"{line}\n" for line in lines))
        written.rename(RECORD)


def lines(now: datetime) -> dict[str, str]:
    """A line for each test that was flaky lately, by test; those that were most often come first."""
    days: dict[str, list[str]] = {}
    for test, when in _read(now):
        days.setdefault(test, []).append(f"{when:%Y-%m-%d}")
    often_first = sorted(days.items(), key=lambda item: (-len(item[1]), item[0]))
    return {
        test: f"FLAKY {test}: {', '.join(found)}{' (to be fixed or removed)' if len(found) > 1 else ''}"
        for test, found in often_first
    }


def _read(now: datetime) -> list[tuple[str, datetime]]:
    try:
        written = RECORD.read_text().splitlines()
    except FileNotFoundError:
        return []
    known = [(row["test"], datetime.fromisoformat(row["time"])) for row in map(json.loads, written)]
    return [(test, when) for test, when in known if now - when < LATELY]


if __name__ == "__main__":
    sys.stdout.writelines(f"{line}\n" for line in lines(datetime.now(UTC)).values())
