"""What setup prints."""

from __future__ import annotations

import io

from dockershim.changes.report import NOTHING
from dockershim.changes.steps import WriteFile, digest
from dockershim.doctor.findings import warn
from dockershim.setup.plan import Plan
from dockershim.setup.report import Report


def step(content: bytes, before: bytes | None) -> WriteFile:
    return WriteFile(path="/etc/a", content=content, reason="why", before=digest(before))


def test_nothing_that_is_read_steers_the_terminal() -> None:
    out = io.StringIO()
    plan = Plan(steps=(step(b"\x1b[31mred\n", b"\xff\x1b]0;x\x07\n"),), left=(warn("a", "\x1b[2J", "b"),))
    Report(out, out).plan(plan, (), lambda _: b"\xff\x1b]0;x\x07\n")
    Report(out, out).failure("\x1b[2J")
    assert "\x1b" not in out.getvalue()
    assert "\x07" not in out.getvalue()
    assert "\\x1b[31mred" in out.getvalue()


def test_what_is_left_has_the_fix_of_doctor() -> None:
    out = io.StringIO()
    Report(out, out).plan(Plan(left=(warn("swap", "on", "swapoff -a"),)), (), lambda _: None)
    assert "swap: on" in out.getvalue()
    assert "fix: swapoff -a" in out.getvalue()
    assert out.getvalue().endswith(f"{NOTHING}\n")
