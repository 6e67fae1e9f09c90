"""The command itself: examines the node, runs the pod if asked, prints, and returns the exit code."""

from __future__ import annotations

import io
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from dockershim.doctor.checks import Question
from dockershim.doctor.findings import ENGINE, Finding, Level, ok
from dockershim.doctor.process import examine
from dockershim.doctor.server import SERVER

WELL: Final = 0
FAILED: Final = 1
INTERRUPTED: Final = 130

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def doctor(question: Question, *, pod: bool, as_json: bool) -> int:
    """0 if nothing failed, 1 if something did, 130 after a signal. To be called before gRPC is loaded."""
    findings: list[Finding] = []
    interrupted = False
    try:
        with _one_interrupt():
            findings += examine(question)
            if pod:
                _run_pod(question.endpoint, findings)
    except KeyboardInterrupt:
        interrupted = True
    # Imported only here, as it takes memory, and only now: the process with the checks does not need it.
    from dockershim.doctor import report

    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    show = report.print_json if as_json else report.print_report
    show(findings, sys.stdout)
    if interrupted:
        return INTERRUPTED
    return FAILED if report.worst(findings) is Level.FAIL else WELL


@contextmanager
def _one_interrupt() -> Iterator[None]:
    """A block in which the first signal raises KeyboardInterrupt, and later ones do nothing: a removal must end."""
    raised = False

    def interrupt(*_: object) -> None:
        nonlocal raised
        if not raised:
            raised = True
            sys.stderr.write("dockershim: interrupted, cleaning up\n")
            raise KeyboardInterrupt

    # One that the caller lets us ignore, as nohup does, stays ignored.
    wanted = [number for number in _SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, interrupt) for number in wanted}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _run_pod(endpoint: str, findings: list[Finding]) -> None:
    failed = {finding.title for finding in findings if finding.level is Level.FAIL}
    if causes := failed & {ENGINE, SERVER}:
        findings.append(ok("pod", f"not tried, because of: {', '.join(sorted(causes))}"))
        return
    from dockershim.doctor.pod import run_pod

    run_pod(endpoint, findings)
