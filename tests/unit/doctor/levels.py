"""Findings in the short form in which the tables of these tests have them."""

from __future__ import annotations

from collections.abc import Iterable

from dockershim.doctor.findings import Finding, Level


def levels(findings: Iterable[Finding]) -> dict[str, str]:
    """The level of each title, the worst one if it is there more than once. All but ``ok`` must have a fix."""
    found: dict[str, str] = {}
    order = [Level.OK, Level.WARN, Level.FAIL]
    for finding in findings:
        assert bool(finding.fix) == (finding.level is not Level.OK), finding
        before = Level(found.get(finding.title, Level.OK))
        found[finding.title] = max(before, finding.level, key=order.index).value
    return found


def fixes(findings: Iterable[Finding]) -> str:
    """All fixes, a line each."""
    return "\n".join(finding.fix for finding in findings if finding.fix)
