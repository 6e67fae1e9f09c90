"""Runs the checks in a process of their own, which is left behind if it hangs.

A thread that looks at a dead mount never returns, and a process with such a thread cannot end. So the command itself
looks at nothing: it waits for what the other process says, and no longer than a deadline.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from dockershim.doctor.checks import CHECKS, Question, run, unanswered
from dockershim.doctor.findings import Finding, Level, without_consequences

#: Seconds: more than the checks of the server take, which are the longest.
_DEADLINE: Final = 9.0
_LONGEST_REPORT: Final = 4 << 20
_CHUNK: Final = 64 << 10

Report = Callable[[str, list[Finding]], None]


def examine(
    question: Question, deadline: float = _DEADLINE, checks: Callable[[Question, Report], None] = run
) -> list[Finding]:
    """The findings of all checks in their order, after ``deadline`` seconds at most.

    To be called before the process has threads (gRPC has some): it forks.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        _become_checker(question, writing, checks)
    os.close(writing)
    try:
        reports = _collect(reading, time.monotonic() + deadline)
    finally:
        os.close(reading)
        _leave_behind(child)
    found = [finding for name in CHECKS for finding in reports.get(name, [unanswered(name)])]
    return without_consequences(found)


def _become_checker(question: Question, writing: int, checks: Callable[[Question, Report], None]) -> None:
    """Run the checks in this process, and end it."""
    try:
        os.setsid()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        # A reader of our output would wait for a process that hangs.
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in range(3):
            os.dup2(null, descriptor)
        checks(question, lambda name, findings: _write(writing, name, findings))
    finally:
        os._exit(0)


def _write(writing: int, name: str, findings: list[Finding]) -> None:
    line = memoryview(json.dumps([name, [finding.to_json() for finding in findings]]).encode() + b"\n")
    while line:
        line = line[os.write(writing, line) :]


def _collect(reading: int, end: float) -> Mapping[str, list[Finding]]:
    """The findings by check that come until ``end``, or until all have come."""
    content = bytearray()
    while len(content) < _LONGEST_REPORT:
        if not select.select([reading], [], [], max(0.0, end - time.monotonic()))[0]:
            break
        chunk = os.read(reading, _CHUNK)
        if not chunk:
            break
        content += chunk
    *lines, _ = bytes(content).split(b"\n")
    return {name: [_finding(fields) for fields in findings] for name, findings in map(json.loads, lines)}


def _finding(fields: Mapping[str, Any]) -> Finding:
    return Finding(**{**fields, "level": Level(fields["level"])})


def _leave_behind(child: int) -> None:
    """Kill the process and the programs that it runs. It is not waited for: it may hang in the kernel."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(child, os.WNOHANG)
