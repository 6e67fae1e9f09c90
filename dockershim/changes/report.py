"""What a command that changes the machine prints: steps, files as unified diffs, commands with their reasons."""

from __future__ import annotations

import contextlib
import difflib
import io
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Final, TextIO

from rich.console import Console
from rich.text import Text

from dockershim.changes.journal import Entry
from dockershim.changes.steps import Call, Command, Run, SetValue, Step, WriteFile
from dockershim.common.text import escape

NOTHING: Final = "nothing to do"
_DIFF: Final = {"+": "green", "-": "red", "@": "cyan"}


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """The default ends the program, which may be half-way through a change."""


class Report:
    """Prints lines, escaped and not wrapped. Colours only on a terminal, and not with NO_COLOR.

    Where nothing can be printed any more, as on a connection that is lost, a change goes on all the same.
    """

    def __init__(self, stream: TextIO, errors: TextIO) -> None:
        self._console = _Console(file=stream, highlight=False, markup=False, emoji=False)
        self._errors = errors

    def line(self, text: str, style: str = "") -> None:
        self.print(Text(escape(text), style))

    def print(self, text: Text) -> None:
        with contextlib.suppress(OSError):
            self._console.print(text, soft_wrap=True)

    def failure(self, text: str) -> None:
        """A line for the other stream."""
        with contextlib.suppress(OSError):
            self._errors.write(f"dockershim: {escape(text)}\n")

    def steps(self, steps: Sequence[Step], read: Callable[[str], bytes | None]) -> None:
        """What will be done. ``read`` gives the content that a file has now."""
        if steps:
            self.line("plan:")
        for number, step in enumerate(steps, 1):
            self._step(number, step, read)

    def _step(self, number: int, step: Step, read: Callable[[str], bytes | None]) -> None:
        self.line(f"  {number}. {step}", "bold")
        match step:
            case WriteFile():
                self.line(f"     because: {step.reason}")
                for line in diff(step, read(step.path)):
                    self.line(f"     {line}", _DIFF.get(line[:1], ""))
                self._commands("then", step.then)
            case SetValue() | Call():
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


def interrupted(entries: Iterable[Entry]) -> list[Entry]:
    """Those whose steps have begun and not ended."""
    return [entry for entry in entries if not entry.done]


def is_root(command: str) -> bool:
    """Whether this process may change the machine; says how to run ``command`` if not. Lines are written at once."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace", line_buffering=True)
    if os.geteuid() != 0:
        sys.stderr.write(f"dockershim: {command} must run as root: sudo dockershim {command}\n")
        return False
    return True
