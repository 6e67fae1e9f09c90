"""What setup prints: what doctor has found, the plan, and what is left."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from rich.text import Text

from dockershim.changes import report
from dockershim.changes.journal import Entry
from dockershim.doctor.findings import Finding, Level
from dockershim.setup.plan import Plan

_STYLES: Final = {Level.OK: "green", Level.WARN: "yellow", Level.FAIL: "bold red"}


class Report(report.Report):
    """The same, with findings of doctor."""

    def plan(self, plan: Plan, interrupted: Sequence[Entry], read: Callable[[str], bytes | None]) -> None:
        """The whole plan. ``read`` gives the content that a file has now."""
        for entry in interrupted:
            self.line(f"interrupted: {entry.step}; setup --yes finishes it, setup --undo undoes all steps")
        self._findings("found:", plan.found)
        self.steps(plan.steps, read)
        self._findings("left, as setup does not change it:", plan.left)
        if plan.offers:
            self.line("also possible:")
            for offer in plan.offers:
                self.line(f"  {offer}")
        if not plan.steps and not interrupted:
            self.line(report.NOTHING)

    def _findings(self, heading: str, findings: Sequence[Finding]) -> None:
        if findings:
            self.line(heading)
        for finding in findings:
            level = (f"  {finding.level:4}", _STYLES[finding.level])
            self.print(Text.assemble(level, f"  {finding.title}: {finding.message}"))
            if finding.fix and heading != "found:":
                self.print(Text.assemble(" " * 8, ("fix: ", "bold"), finding.fix))
