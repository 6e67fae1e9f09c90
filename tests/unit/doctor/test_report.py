"""The report for people and for programs."""

from __future__ import annotations

import io
import json

import pytest

from dockershim.doctor.findings import Finding, Level, fail, ok, warn
from dockershim.doctor.report import print_json, print_report, worst

FINDINGS = [
    ok("engine", "Docker [red]28[/red] :smile:"),
    warn("swap", "on\nand on", "swapoff -a"),
    fail("pod: RunPodSandbox", "x" * 5000, "look", 0.0123),
]
PLAIN = """\
ok    engine              Docker [red]28[/red] :smile:
warn  swap\x1b[2J            on\\nand on
      fix: swapoff -a
"""


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_line_for_each_and_its_mend() -> None:
    stream = io.StringIO()
    print_report([FINDINGS[0], ok("pod: list", "x", 0.0123), warn("swap", "on\nand on", "swapoff -a")], stream)
    assert stream.getvalue() == (
        "ok    engine     Docker [red]28[/red] :smile:\n"
        "ok    pod: list  x (12 ms)\n"
        "warn  swap       on\\nand on\n"
        "      fix: swapoff -a\n"
        "0 failed, 1 warnings, 2 ok\n"
    )


def test_long_texts_are_cut_and_a_command_stays_on_its_line() -> None:
    stream = io.StringIO()
    print_report([fail("a", "x" * 5000, "y " * 200)], stream)
    lines = stream.getvalue().splitlines()
    assert len(lines) == 3
    assert len(lines[0]) < 700


@pytest.mark.parametrize(("no_color", "coloured"), [("", True), ("1", False)])
def test_colours_are_for_terminals_that_want_them(
    no_color: str, coloured: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    for name in ("FORCE_COLOR", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    if no_color:
        monkeypatch.setenv("NO_COLOR", no_color)
    stream = Terminal()
    print_report(FINDINGS[:1], stream)
    assert ("\x1b[32m" in stream.getvalue()) is coloured


def test_json_has_the_same() -> None:
    stream = io.StringIO()
    print_json(FINDINGS, stream)
    document = json.loads(stream.getvalue())
    assert document["result"] == "fail"
    assert document["findings"][1] == {
        "level": "warn",
        "title": "swap",
        "message": "on\\nand on",
        "fix": "swapoff -a",
    }
    assert document["findings"][2]["seconds"] == 0.012


@pytest.mark.parametrize(
    ("findings", "expected"),
    [([], Level.OK), (FINDINGS[:1], Level.OK), (FINDINGS[:2], Level.WARN), (FINDINGS[::-1], Level.FAIL)],
)
def test_the_worst(findings: list[Finding], expected: Level) -> None:
    assert worst(findings) is expected
