"""The result of a check."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from dockershim.common.text import escape

#: In characters. A path has 4096 at most; an engine's or plugin's message can be much longer.
_LONGEST_TEXT: Final = 600

_SYSCTL: Final = re.compile(r"sysctl -w ([a-z0-9_.-]+)=(\d+) \(and in /etc/sysctl\.d\)")

ENGINE: Final = "engine"
CNI_CONFIGURATION: Final = "CNI configuration"
CNI_PLUGINS: Final = "CNI plugins"
RUNTIME_READY: Final = "RuntimeReady"
NETWORK_READY: Final = "NetworkReady"

#: Findings that are consequences of others: fixing those fixes them.
_FOLLOWS: Final[Mapping[str, tuple[str, ...]]] = {
    RUNTIME_READY: (ENGINE,),
    NETWORK_READY: (CNI_CONFIGURATION, CNI_PLUGINS),
}


class Level(StrEnum):
    """``FAIL``: pods fail because of it. ``WARN``: pods run, but the operator should know."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report. ``fix`` is a command or an edit that fixes the problem; empty if there is none.

    ``seconds`` is how long a step of the pod took; None for all else.
    """

    level: Level
    title: str
    message: str
    fix: str = ""
    seconds: float | None = None

    def to_json(self) -> dict[str, Any]:
        """As a JSON object; ``seconds`` only if there are some."""
        fields = dataclasses.asdict(self)
        if self.seconds is None:
            del fields["seconds"]
        return fields


def ok(title: str, message: str, seconds: float | None = None) -> Finding:
    return Finding(Level.OK, clean(title), clean(message), "", _rounded(seconds))


def warn(title: str, message: str, fix: str) -> Finding:
    return Finding(Level.WARN, clean(title), clean(message), clean(fix))


def fail(title: str, message: str, fix: str, seconds: float | None = None) -> Finding:
    return Finding(Level.FAIL, clean(title), clean(message), clean(fix), _rounded(seconds))


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)


def sysctl_fix(name: str, value: int) -> str:
    """The fix that sets a sysctl now and at each boot; ``sysctl_of`` reads it."""
    return f"sysctl -w {name}={value} (and in /etc/sysctl.d)"


def sysctl_of(finding: Finding) -> tuple[str, str] | None:
    """The sysctl that fixes a finding, and its value; None if it has another fix."""
    found = _SYSCTL.fullmatch(finding.fix)
    return (found[1], found[2]) if found else None


def clean(text: str) -> str:
    """Foreign text as one short line that cannot steer a terminal."""
    short = text if len(text) <= _LONGEST_TEXT else text[:_LONGEST_TEXT] + "..."
    return escape(short)


def without_consequences(findings: Iterable[Finding]) -> list[Finding]:
    """The findings, with failures that only follow from another one as warnings that name it.

    So one cause is red once, and the operator sees where to begin.
    """
    every = list(findings)
    failed = {finding.title for finding in every if finding.level is Level.FAIL}
    return [_as_consequence(finding, failed) for finding in every]


def _as_consequence(finding: Finding, failed: set[str]) -> Finding:
    causes = [title for title in _FOLLOWS.get(finding.title, ()) if title in failed]
    if finding.level is not Level.FAIL or not causes:
        return finding
    return dataclasses.replace(finding, level=Level.WARN, fix=f"fix {causes[0]} first: this is a consequence of it")
