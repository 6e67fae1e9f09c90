"""What is kept of a run, in bench/results/, and what is said of it and about the machine that it was made on."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.comparison import LEGEND, Comparison, missed, speeds, table

RESULTS = Path(__file__).parent / "results"


def facts(engine: str) -> dict[str, Any]:
    """When and where a run is made, with the ``engine`` of this version."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "engine": engine,
        "storage": os.environ["TEST_NODE_STORAGE"],
        "kernel": os.uname().release,
        "cpus": os.cpu_count(),
        "load average": round(os.getloadavg()[0], 1),
    }


def in_words(about: Mapping[str, Any]) -> str:
    """The same for people, in one line."""
    return ", ".join(f"{key} {value}" for key, value in about.items()) + "\n"


def keep(kind: str, about: Mapping[str, Any], content: Mapping[str, Any]) -> Path:
    """Write a result of this kind, empty for the usual one; where it is."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{kind}{about['date'].replace(':', '')}-engine-{about['engine']}.json"
    path.write_text(json.dumps({**about, **content}, indent=1) + "\n")
    return path


def report(
    kind: str,
    about: Mapping[str, Any],
    comparisons: Sequence[Comparison],
    *,
    check: bool,
    legend: str = LEGEND,
    other: str = "bare",
) -> int:
    """Keep and print comparisons with ``other``. Returns the exit code: with ``check``, 1 for a missed limit."""
    path = keep(kind, about, {"calls": [one.as_json() for one in comparisons]})
    sys.stdout.write(f"{in_words(about)}{legend}\n\n{table(comparisons, other)}\n{speeds(comparisons)}{path}\n")
    return verdict(missed(comparisons), check=check)


def verdict(missed: Sequence[str], *, check: bool) -> int:
    """Print the limits that do not hold. Returns the exit code, as ``report``."""
    if missed:
        sys.stdout.write(f"limit missed: {', '.join(missed)}\n")
    return 1 if check and missed else 0
