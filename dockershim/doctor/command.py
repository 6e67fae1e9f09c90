"""The command itself: examines the node, runs the pod if asked, prints, and returns the exit code."""

from __future__ import annotations

import contextlib
import io
import sys
from typing import Final

from dockershim.doctor.check_process import examine
from dockershim.doctor.checks import Question
from dockershim.doctor.findings import ENGINE, Finding, Level, ok
from dockershim.doctor.interrupts import Interrupts
from dockershim.doctor.server import SERVER, log_of, services, unit_of

WELL: Final = 0
FAILED: Final = 1
INTERRUPTED: Final = 130


def doctor(question: Question, *, pod: bool, as_json: bool) -> int:
    """0 if nothing failed, 1 if something did, 130 after a signal. To be called before gRPC is loaded."""
    findings: list[Finding] = []
    with Interrupts() as interrupts, contextlib.suppress(KeyboardInterrupt):
        with interrupts.allowed():
            findings += examine(question)
        if pod:
            _run_pod(question.endpoint, findings, interrupts)
    # Imported only here, as it takes memory, and only now: the process with the checks does not need it.
    from dockershim.doctor import report

    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    show = report.print_json if as_json else report.print_report
    show(findings, sys.stdout)
    if interrupts.seen:
        return INTERRUPTED
    return FAILED if report.worst(findings) is Level.FAIL else WELL


def _run_pod(endpoint: str, findings: list[Finding], interrupts: Interrupts) -> None:
    failed = {finding.title for finding in findings if finding.level is Level.FAIL}
    if causes := failed & {ENGINE, SERVER}:
        findings.append(ok("pod", f"skipped, because these checks failed: {', '.join(sorted(causes))}"))
        return
    from dockershim.doctor.pod import run_pod

    run_pod(endpoint, findings, interrupts, log_of(unit_of(services(), endpoint, None).name))
