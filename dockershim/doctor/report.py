"""The report: for people, or as JSON."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import Final, TextIO

from rich.console import Console
from rich.text import Text

from dockershim.doctor.findings import Finding, Level

_STYLES: Final = {Level.OK: "green", Level.WARN: "yellow", Level.FAIL: "bold red"}


def print_report(findings: Sequence[Finding], stream: TextIO) -> None:
    """A line for each finding, and one with its fix. Colours only on a terminal, and not with NO_COLOR."""
    console = Console(file=stream, highlight=False, markup=False, emoji=False)
    width = max((len(finding.title) for finding in findings), default=0)
    for finding in findings:
        took = f" ({finding.seconds * 1000:.0f} ms)" if finding.seconds is not None else ""
        line = Text.assemble(
            (f"{finding.level:4}", _STYLES[finding.level]), f"  {finding.title:{width}}  {finding.message}{took}"
        )
        # Not wrapped: a command that is cut into two lines cannot be copied.
        console.print(line, soft_wrap=True)
        if finding.fix:
            console.print(Text.assemble(" " * 6, ("fix: ", "bold"), finding.fix), soft_wrap=True)
    counts = Counter(finding.level for finding in findings)
    words = ((Level.FAIL, "failed"), (Level.WARN, "warnings"), (Level.OK, "ok"))
    console.print(Text(", ".join(f"{counts[level]} {word}" for level, word in words)), soft_wrap=True)


def print_json(findings: Sequence[Finding], stream: TextIO) -> None:
    """``{"result": worst level, "findings": [{"level", "title", "message", "fix", "seconds"?}]}``."""
    document = {"result": worst(findings), "findings": [finding.to_json() for finding in findings]}
    stream.write(json.dumps(document, indent=2) + "\n")


def worst(findings: Sequence[Finding]) -> Level:
    """The worst level of all; OK if there are none."""
    order = (Level.OK, Level.WARN, Level.FAIL)
    return max((finding.level for finding in findings), key=order.index, default=Level.OK)
