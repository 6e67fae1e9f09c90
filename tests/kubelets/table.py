"""The README's table of kubelets, made of what runs have seen. Pure: text in, text out."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Mapping
from typing import Final

from tests.kubelets.versions import RESIZES, settings, since

BEGIN: Final = "<!-- kubelets: make kubelets WRITE=1 -->\n"
END: Final = "<!-- /kubelets -->\n"
#: The columns, by the test that has seen what is in them.
COLUMNS: Final[Mapping[str, str]] = {
    "test_start": "Start",
    "test_logs": "Logs",
    "test_exec[SPDY]": "exec, SPDY",
    "test_exec[WebSocket]": "exec, WebSocket",
    "test_probes": "Probes",
    "test_a_killed_container_is_started_again": "Kill",
    "test_resize": "Resize",
    "test_stop": "Stop",
}
RESIZE: Final = "test_resize"
NOT_RUN: Final = "not run"

Outcomes = Mapping[str, str]


def columns(minor: str) -> list[str]:
    """The tests that are run with a kubelet."""
    return [name for name in COLUMNS if name != RESIZE or since(RESIZES, minor)]


def read_report(junit: str) -> Outcomes:
    """Of each test in a report of pytest "passed" or "failed"."""
    found: dict[str, str] = {}
    for case in ET.fromstring(junit).iter("testcase"):
        passed = all(case.find(kind) is None for kind in ("failure", "error", "skipped"))
        # The error of a fixture's end is a second case of the same name.
        if found.get(name := case.get("name", "")) != "failed":
            found[name] = "passed" if passed else "failed"
    return found


def failed(minor: str, outcomes: Outcomes) -> list[str]:
    """The tests of a kubelet that did not pass, also for want of a run."""
    return [name for name in columns(minor) if outcomes.get(name) != "passed"]


def row(version: str, outcomes: Outcomes) -> str:
    """The line of one kubelet."""
    minor = version.rpartition(".")[0]
    tried = columns(minor)
    needs = ", ".join(f"`{key}: {str(value).lower()}`" for key, value in settings(minor).items())
    cells = (outcomes.get(name, NOT_RUN) if name in tried else "not tried" for name in COLUMNS)
    return f"| {' | '.join([version, *cells, needs])} |\n".replace("|  |", "| |")


def with_rows(page: str, versions: Mapping[str, str], seen: Mapping[str, Outcomes]) -> str:
    """The page with rows of the kubelets that were ``seen``, by minor version, and those that it has of the others.

    Raises ValueError if it has no place for them.
    """
    above, begin, rest = page.partition(BEGIN)
    _, end, below = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"the page has no lines {BEGIN!r} and {END!r}")
    had = rows(page)
    lines = (
        row(version, seen[minor]) if minor in seen else had.get(version) or row(version, {})
        for minor, version in versions.items()
    )
    titles = f"| Kubelet | {' | '.join(COLUMNS.values())} | Needs |\n{'|---' * (len(COLUMNS) + 2)}|\n"
    return "".join([above, begin, "\n", titles, *lines, "\n", end, below])


def rows(page: str) -> dict[str, str]:
    """The lines of the page's table, by the version."""
    table = page.partition(BEGIN)[2].partition(END)[0]
    return {found[1]: found[0] for found in re.finditer(r"^\| (\d+\.\d+\.\d+) \|.*\n", table, re.MULTILINE)}
