"""The comparison of a report with the list of expectations, and the list itself."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import get_args

import pytest

from tests import conformance, e2e_node, kubeadm, two_nodes
from tests.conformance.verdict import (
    Expectation,
    Expected,
    Outcome,
    Spec,
    by_area,
    compare,
    draft,
    picked,
    read_expectations,
    read_report,
    to_focus,
    unexpected_failures,
)
from tests.kubernetes import programs
from tests.node.supplies import ENGINES

REPORT = """\
<testsuites><testsuite>
<testcase name="[BeforeSuite]" status="passed" time="0.1"/>
<testcase name="[It] works" status="passed" time="1.5"><system-err>noise</system-err></testcase>
<testcase name="[It] is  slow" status="failed" time="2"><failure message="Timed out">trace</failure></testcase>
<testcase name="[It] is left out" status="skipped" time="0"><skipped message="skipped - no AppArmor"/></testcase>
<testcase name="[It] breaks" status="panicked" time="0"><error message="boom">trace</error></testcase>
<testcase name="[AfterSuite]" status="failed" time="0"><failure message="leak"/></testcase>
</testsuite></testsuites>
"""
LIST = """\
[[group]]
outcome = "failed"
reason = "the reason"
specs = ["a", "b"]
[[group]]
outcome = "skipped"
reason = "old engine"
engines = ["20"]
specs = ["c"]
[[group]]
outcome = "failed"
reason = "not without the gate"
gates = [""]
specs = ["d"]
[[group]]
outcome = "failed"
reason = "older suite"
kubernetes = ["1.36"]
specs = ["e"]
"""


def test_failures_that_the_list_does_not_expect() -> None:
    specs = [Spec("a", "failed"), Spec("b", "passed"), Spec("c", "failed"), Spec("d", "skipped")]
    assert unexpected_failures(specs, [Expectation("a", "failed", "why")]) == ["c"]


@pytest.mark.parametrize(
    ("name", "text", "matches"),
    [
        pytest.param("[It] [k8s.io] Pod (1.5) runs", "[k8s.io] Pod  (1.5) runs", True, id="brackets, dots and blanks"),
        pytest.param("[It] Image is pulled [Conformance] [Serial]", "Image is pulled [Conformance]", True, id="labels"),
        pytest.param("[It] Pod 1.5 runs", "Pod 1x5 runs", False, id="another one"),
    ],
)
def test_a_focus_matches_the_text_of_a_spec(name: str, text: str, matches: bool) -> None:
    assert bool(re.search(to_focus(["[It] something else", name]), text)) is matches


def test_report_is_read_with_failures_of_the_suite_itself() -> None:
    assert read_report(REPORT) == [
        Spec("[It] works", "passed", "", 1.5),
        Spec("[It] is slow", "failed", "Timed out", 2),
        Spec("[It] is left out", "skipped", "skipped - no AppArmor"),
        Spec("[It] breaks", "failed", "boom"),
        Spec("[AfterSuite]", "failed", "leak"),
    ]


@pytest.mark.parametrize(
    ("outcome", "expected", "differs"),
    [
        pytest.param("passed", None, False, id="passes, not in the list"),
        pytest.param("failed", None, True, id="fails, not in the list"),
        pytest.param("skipped", None, True, id="skipped, not in the list"),
        pytest.param("failed", "failed", False, id="fails as expected"),
        pytest.param("skipped", "skipped", False, id="skipped as expected"),
        pytest.param("passed", "failed", True, id="passes though the list says it fails"),
        pytest.param("passed", "skipped", True, id="passes though the list says it is skipped"),
        pytest.param("skipped", "failed", True, id="skipped though the list says it fails"),
    ],
)
def test_comparison(outcome: Outcome, expected: Expected | None, differs: bool) -> None:
    expectations = [] if expected is None else [Expectation("a", expected, "why")]
    assert [found.name for found in compare([Spec("a", outcome)], expectations)] == (["a"] if differs else [])


@pytest.mark.parametrize(
    ("name", "same"),
    [
        pytest.param("[It] [sig-node] Pod [Serial] runs [Slow] [sig-node, Serial]", True, id="tags in other places"),
        pytest.param("[It] [sig-node] Pod runs [Slow] [sig-node, Serial]", False, id="a tag less"),
        pytest.param("[It] [sig-node] Pod ends [Slow] [Serial] [sig-node, Serial]", False, id="another text"),
    ],
)
def test_a_spec_is_the_same_wherever_its_tags_stand(name: str, same: bool) -> None:
    expectations = [Expectation("[It] [sig-node] Pod runs [Slow] [Serial] [sig-node, Serial]", "failed", "why")]
    assert (compare([Spec(name, "failed")], expectations) == []) is same


def test_an_expectation_of_a_spec_that_is_gone_is_a_difference() -> None:
    assert [found.name for found in compare([], [Expectation("gone", "failed", "why")])] == ["gone"]


@pytest.mark.parametrize(
    ("engine", "gates", "kubernetes", "names"),
    [
        pytest.param("20", "", "1.37", ["a", "b", "c", "d"], id="a group for this engine counts"),
        pytest.param("28", "", "1.37", ["a", "b", "d"], id="a group for another engine does not"),
        pytest.param("28", "Gate=true", "1.37", ["a", "b"], id="a group for another kubelet does not"),
        pytest.param("28", "", "1.36", ["a", "b", "d", "e"], id="a group for this release counts"),
    ],
)
def test_expectations_of_a_run(engine: str, gates: str, kubernetes: str, names: list[str]) -> None:
    assert [expectation.name for expectation in read_expectations(LIST, engine, gates, kubernetes)] == names


def test_expectations_of_a_guest() -> None:
    text = '[[group]]\noutcome = "failed"\nreason = "why"\nmachines = ["node"]\nspecs = ["a"]\n'
    assert [found.name for found in read_expectations(text, "28")] == ["a"]
    assert read_expectations(text, "28", machine="guest") == []


def test_a_draft_is_a_list_that_its_run_meets() -> None:
    specs = [Spec("ok", "passed"), Spec('says "no"', "failed", 'expected "x"\nmore'), Spec("left out", "skipped")]
    assert compare(specs, read_expectations(draft(specs), "28")) == []


def test_only_what_no_focus_picks_is_left_out() -> None:
    specs = [Spec("ok", "passed"), Spec("other", "skipped", "skipped"), Spec("skips", "skipped", "skipped - why")]
    assert [spec.name for spec in picked(specs)] == ["ok", "skips"]


def test_a_table_has_a_line_for_each_area() -> None:
    specs = [
        Spec("[It] [sig-node] Pods run [Conformance] [sig-node]", "passed", seconds=2.0),
        Spec("[It] [sig-node] Pods stop", "failed", seconds=1.0),
        Spec("[It] [sig-apps] Jobs end", "passed", seconds=4.0),
        Spec("[AfterSuite]", "failed"),
    ]
    assert [line.split() for line in by_area(specs).splitlines()] == [
        ["sig-apps", "1", "passed", "of", "1,", "4", "s"],
        ["sig-node", "1", "passed", "of", "2,", "3", "s"],
        ["suite", "0", "passed", "of", "1,", "0", "s"],
        ["all", "2", "passed", "of", "4,", "7", "s"],
    ]


@pytest.mark.parametrize("suite", [conformance, e2e_node, kubeadm, two_nodes], ids=lambda suite: suite.__name__)
@pytest.mark.parametrize("kubernetes", programs.SUITES)
@pytest.mark.parametrize("engine", sorted(ENGINES))
def test_the_list_names_each_spec_once_and_with_a_reason(suite: ModuleType, engine: str, kubernetes: str) -> None:
    text = (Path(*suite.__path__) / "expected.toml").read_text()
    expectations = read_expectations(text, engine, kubernetes=kubernetes)
    assert all(expectation.reason and expectation.outcome in get_args(Expected) for expectation in expectations)
    repeated = [name for name, count in Counter(expectation.name for expectation in expectations).items() if count > 1]
    assert repeated == []
