"""What setup prints: the plan, with each file as a unified diff and each command with its reason."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Sequence
from typing import Final, TextIO

from rich.console import Console
from rich.text import Text

from dockershim.changes.journal import Entry
from dockershim.changes.steps import Command, Run, SetValue, Step, WriteFile
from dockershim.common.text import escape
from dockershim.doctor.findings import Finding, Level
from dockershim.setup.plan import Plan

NOTHING: Final = "nothing to do"
_STYLES: Final = {Level.OK: "green", Level.WARN: "yellow", Level.FAIL: "bold red"}
_DIFF: Final = {"+": "green", "-": "red", "@": "cyan"}


class Report:
    """Prints lines, escaped and not wrapped. Colours only on a terminal, and not with NO_COLOR."""

    def __init__(self, stream: TextIO, errors: TextIO) -> None:
        self._console = Console(file=stream, highlight=False, markup=False, emoji=False)
        self._errors = errors

    def line(self, text: str, style: str = "") -> None:
        self._console.print(Text(escape(text), style), soft_wrap=True)

    def failure(self, text: str) -> None:
        """A line for the other stream."""
        self._errors.write(f"dockershim: {escape(text)}\n")

    def plan(self, plan: Plan, interrupted: Sequence[Entry], read: Callable[[str], bytes | None]) -> None:
        """The whole plan. ``read`` gives the content that a file has now."""
        for entry in interrupted:
            self.line(f"interrupted: {entry.step}; setup --yes finishes it, setup --undo undoes all steps")
        self._findings("found:", plan.found)
        if plan.steps:
            self.line("plan:")
        for number, step in enumerate(plan.steps, 1):
            self._step(number, step, read)
        self._findings("left, as setup does not change it:", plan.left)
        if plan.offers:
            self.line("also possible:")
            for offer in plan.offers:
                self.line(f"  {offer}")
        if not plan.steps and not interrupted:
            self.line(NOTHING)

    def _findings(self, heading: str, findings: Sequence[Finding]) -> None:
        if findings:
            self.line(heading)
        for finding in findings:
            level = (f"  {finding.level:4}", _STYLES[finding.level])
            self._console.print(Text.assemble(level, f"  {finding.title}: {finding.message}"), soft_wrap=True)
            if finding.fix and heading != "found:":
                self._console.print(Text.assemble(" " * 8, ("fix: ", "bold"), finding.fix), soft_wrap=True)

    def _step(self, number: int, step: Step, read: Callable[[str], bytes | None]) -> None:
        self.line(f"  {number}. {step}", "bold")
        match step:
            case WriteFile():
                self.line(f"     because: {step.reason}")
                for line in diff(step, read(step.path)):
                    self.line(f"     {line}", _DIFF.get(line[:1], ""))
                self._commands("then", step.then)
            case SetValue():
                self.line(f"     because: {step.reason}")
            case Run():
                self.line(f"     because: {step.command.reason}")

    def _commands(self, when: str, commands: Iterable[Command]) -> None:
        for command in commands:
            needs = f", if {command.needs}" if command.needs else ""
            self.line(f"     {when}: {command} ({command.reason}{needs})")


def diff(step: WriteFile, before: bytes | None) -> list[str]:
    """The lines of a unified diff; one line for what is not text."""
    if b"\0" in step.content or b"\0" in (before or b""):
        return [f"binary, {len(step.content)} bytes, mode {step.mode:o}"]
    old, new = ((one or b"").decode(errors="backslashreplace").splitlines() for one in (before, step.content))
    name = "/dev/null" if before is None else step.path
    return list(difflib.unified_diff(old, new, name, step.path, lineterm=""))
