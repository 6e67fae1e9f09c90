"""What a suite of Ginkgo reported against what the list of expectations says. Pure: text in, findings out."""

from __future__ import annotations

import re
import tomllib
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, cast

Outcome = Literal["passed", "failed", "skipped"]
Expected = Literal["failed", "skipped"]

_TAG: Final = re.compile(r"\[[^]]*\]")
_AREA: Final = re.compile(r"\[(sig-[^]]*)\]")


@dataclass(frozen=True, slots=True)
class Spec:
    """One spec with its outcome; `message` is why it failed or was skipped, at most a few lines."""

    name: str
    outcome: Outcome
    message: str = ""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Expectation:
    """A spec that is expected not to pass, with the reason that the list gives."""

    name: str
    outcome: Expected
    reason: str


def read_report(junit: str) -> list[Spec]:
    """The specs of a JUnit report that Ginkgo wrote; its set-up nodes, which are no specs, only if they failed."""
    specs = (_spec(case) for case in ET.fromstring(junit).iter("testcase"))
    return [spec for spec in specs if spec.name.startswith("[It]") or spec.outcome == "failed"]


def picked(specs: Iterable[Spec]) -> list[Spec]:
    """The specs that were to run. One that skips itself says why; one that no focus picks is just "skipped"."""
    return [spec for spec in specs if spec.message != "skipped"]


def _spec(case: ET.Element) -> Spec:
    outcome: Outcome = "passed"
    message = ""
    for kind in ("failure", "error", "skipped"):
        if (found := case.find(kind)) is not None:
            outcome = "skipped" if kind == "skipped" else "failed"
            message = (found.get("message") or found.text or "").strip()
    return Spec(re.sub(r"\s+", " ", case.get("name", "")), outcome, message, float(case.get("time", "0")))


def read_expectations(
    toml: str, engine: str, gates: str = "", kubernetes: str = "", machine: str = "node"
) -> list[Expectation]:
    """The expectations for `engine`, and for a kubelet with these feature gates and of this minor version.

    `machine` is "node" for a test node, "guest" for a guest.

    KeyError or tomllib.TOMLDecodeError for a list that is not well-formed.
    """
    groups = cast("list[Mapping[str, object]]", tomllib.loads(toml).get("group", []))
    return [
        Expectation(name, cast(Expected, group["outcome"]), cast(str, group["reason"]))
        for group in groups
        if engine in cast("list[str]", group.get("engines", [engine]))
        and gates in cast("list[str]", group.get("gates", [gates]))
        and kubernetes in cast("list[str]", group.get("kubernetes", [kubernetes]))
        and machine in cast("list[str]", group.get("machines", [machine]))
        for name in cast("list[str]", group["specs"])
    ]


@dataclass(frozen=True, slots=True)
class Difference:
    """A spec that did not do what the list says, and that in words."""

    name: str
    text: str


def compare(specs: Iterable[Spec], expectations: Iterable[Expectation]) -> list[Difference]:
    """What differs: nothing means that the run is good.

    A spec that passes though the list says otherwise is a difference too, so that the list only shrinks.
    """
    expected = {key(expectation.name): expectation for expectation in expectations}
    found: list[Difference] = []
    keys: set[tuple[str, ...]] = set()
    for spec in specs:
        keys.add(own := key(spec.name))
        outcome = expected[own].outcome if own in expected else "passed"
        if outcome != spec.outcome:
            message = f": {spec.message.splitlines()[0]}" if spec.message else ""
            found.append(Difference(spec.name, f"{spec.outcome}, expected {outcome}: {spec.name}{message}"))
    gone = (expectation.name for own, expectation in expected.items() if own not in keys)
    return found + [Difference(name, f"in the list, but the suite has no such spec: {name}") for name in gone]


def key(name: str) -> tuple[str, ...]:
    """What names are compared by: releases of a suite put the same tags, as [Serial], into other places."""
    return (" ".join(_TAG.sub(" ", name).split()), *sorted(_TAG.findall(name)))


def unexpected_failures(specs: Iterable[Spec], expectations: Iterable[Expectation]) -> list[str]:
    """The names of the specs that failed and are expected to pass; a failure of the suite itself is one, too."""
    expected = {expectation.name for expectation in expectations}
    return [spec.name for spec in specs if spec.outcome == "failed" and spec.name not in expected]


def passed_of(names: Iterable[str], specs: Iterable[Spec]) -> list[str]:
    """Those of the names whose spec passed."""
    passed = {spec.name for spec in specs if spec.outcome == "passed"}
    return [name for name in names if name in passed]


def to_focus(names: Iterable[str]) -> str:
    """A regular expression for Ginkgo's focus that matches the specs of these names, and few others.

    A report puts "[It]" before a spec's text, its labels behind it, and one blank for several.
    """
    texts = (re.sub(r"( \[[^]]*\])*$", "", name.removeprefix("[It] ")) for name in names)
    return "|".join(r"\s+".join(map(re.escape, text.split())) for text in texts)


def by_area(specs: Iterable[Spec]) -> str:
    """A line for each group of Kubernetes, with how many of its specs passed, of how many, and their seconds."""
    areas: dict[str, list[Spec]] = {}
    for spec in specs:
        found = _AREA.search(spec.name)
        areas.setdefault(found[1] if found else "suite", []).append(spec)
    rows = [*sorted(areas.items()), ("all", [spec for found in areas.values() for spec in found])]
    return "".join(_row(area, found) for area, found in rows)


def _row(area: str, specs: Sequence[Spec]) -> str:
    counts = Counter(spec.outcome for spec in specs)
    seconds = sum(spec.seconds for spec in specs)
    return f"{area:<24}{counts['passed']:4} passed of {len(specs):4}, {seconds:6.0f} s\n"


def draft(specs: Iterable[Spec]) -> str:
    """A list of expectations that the outcomes of `specs` meet; the reasons are the suite's words, to be replaced."""
    groups: dict[tuple[Outcome, str], list[str]] = {}
    for spec in specs:
        if spec.outcome != "passed":
            reason = spec.message.splitlines()[0] if spec.message else "no reason given"
            groups.setdefault((spec.outcome, reason), []).append(spec.name)
    return "\n".join(_group(outcome, reason, names) for (outcome, reason), names in sorted(groups.items()))


def _group(outcome: Outcome, reason: str, names: Iterable[str]) -> str:
    quoted = "".join(f"    {_quoted(name)},\n" for name in sorted(set(names)))
    return f'[[group]]\noutcome = "{outcome}"\nreason = {_quoted(reason)}\nspecs = [\n{quoted}]\n'


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\t", " ") + '"'
