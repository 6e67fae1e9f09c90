"""The README's table of kubelets, and how `make kubelets` writes it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.conformance import tools
from tests.kubelets import pin, table
from tests.kubelets.versions import VERSIONS
from tests.kubernetes import programs

ROOT = Path(__file__).parents[3]
README = (ROOT / "README.md").read_text()
TESTS = (ROOT / "tests/kubelets/test_kubelets.py").read_text()
PAGE = f"above\n{table.BEGIN}{table.END}below\n"
ALL_PASSED = dict.fromkeys(table.COLUMNS, "passed")
LINE = """\
  <testcase classname="c" name="test_start"/><testcase classname="c" name="test_stop">
    <failure message="no"/></testcase>
  <testcase classname="c" name="test_logs"/>
  <testcase classname="c" name="test_logs"><error message="at its end"/></testcase>
  <testcase classname="c" name="test_probes"><skipped message="for no reason"/></testcase>
"""


def test_the_table_names_exactly_the_kubelets_of_the_list() -> None:
    assert list(table.rows(README)) == list(VERSIONS.values())


def test_the_list_has_each_minor_version_once() -> None:
    assert list(VERSIONS) == [f"1.{number}" for number in range(29, 29 + len(VERSIONS))]
    assert list(VERSIONS)[-1] == "1.37"


@pytest.mark.parametrize("release", programs.RELEASES.values(), ids=lambda release: release.minor)
def test_each_module_is_of_one_release(release: programs.Release) -> None:
    text = (release.module / "go.mod").read_text()
    assert re.findall(r"k8s\.io/kubernetes v(\S+)", text) == [release.version]
    assert release.version.startswith(f"{release.minor}.")
    assert set(re.findall(r" => \S+ v(\S+)", text)) == {f"0.{release.version.partition('.')[2]}"}
    assert text.startswith(f"module dockershim/tests/kubernetes/releases/{release.minor}\n")
    # The module of a release whose suites are run pins their ginkgo too.
    assert (f"{tools.GINKGO} v" in text) == (release.minor in programs.SUITES)


def test_each_column_is_of_a_test() -> None:
    functions = re.findall(r"^(?:async )?def (test_\w+)", TESTS, re.MULTILINE)
    assert list(dict.fromkeys(column.partition("[")[0] for column in table.COLUMNS)) == functions


def test_what_ran_is_written_and_what_did_not_run_is_kept() -> None:
    versions = {"1.29": "1.29.15", "1.37": "1.37.2"}
    first = table.with_rows(PAGE, versions, {"1.37": ALL_PASSED})
    assert first.startswith(f"above\n{table.BEGIN}")
    assert first.endswith(f"{table.END}below\n")
    rows = table.rows(first)
    assert list(rows) == ["1.29.15", "1.37.2"]
    assert rows["1.29.15"].count("not run") == len(table.COLUMNS) - 1
    assert rows["1.37.2"].count("passed") == len(table.COLUMNS)
    assert rows["1.37.2"].endswith("| `failCgroupV1: false` |\n")
    second = table.with_rows(first, versions, {"1.29": ALL_PASSED | {"test_stop": "failed"}})
    assert table.rows(second)["1.37.2"] == rows["1.37.2"]
    old = table.rows(second)["1.29.15"]
    assert (old.count("passed"), old.count("failed"), old.count("not tried")) == (len(table.COLUMNS) - 2, 1, 1)


def test_a_row_of_another_patch_release_is_not_kept() -> None:
    first = table.with_rows(PAGE, {"1.29": "1.29.14"}, {"1.29": ALL_PASSED})
    rows = table.rows(table.with_rows(first, {"1.29": "1.29.15"}, {}))
    assert list(rows) == ["1.29.15"]
    assert "passed" not in rows["1.29.15"]


def test_a_page_without_a_place_for_the_table_is_refused() -> None:
    with pytest.raises(ValueError, match="no lines"):
        table.with_rows("above\n", VERSIONS, {})


def test_only_what_passed_has_passed() -> None:
    outcomes = table.read_report(f"<testsuites><testsuite>{LINE}</testsuite></testsuites>")
    assert outcomes == {
        "test_start": "passed",
        "test_stop": "failed",
        "test_logs": "failed",
        "test_probes": "failed",
    }
    assert set(table.failed("1.37", outcomes)) == set(table.COLUMNS) - {"test_start"}
    assert "test_resize" not in table.failed("1.29", outcomes)


def test_a_module_is_made_of_the_go_mod_of_a_release() -> None:
    own = """\
module k8s.io/kubernetes

go 1.23.0

godebug default=go1.23

require (
	k8s.io/api v0.0.0
)

replace (
	k8s.io/api => ./staging/src/k8s.io/api
	k8s.io/kubelet => ./staging/src/k8s.io/kubelet
)
"""
    assert (
        pin.go_mod(own, "1.32.13")
        == """\
module dockershim/tests/kubernetes/releases/1.32

go 1.23.0

godebug default=go1.23

require k8s.io/kubernetes v1.32.13

replace (
	k8s.io/api => k8s.io/api v0.32.13
	k8s.io/kubelet => k8s.io/kubelet v0.32.13
)
"""
    )


@pytest.mark.parametrize(
    ("minor", "suites"),
    [
        pytest.param("1.35", False, id="of an older one the kubelet"),
        pytest.param("1.36", True, id="of the second newest all"),
        pytest.param("1.37", True, id="of the newest all"),
        pytest.param("1.38", True, id="of a new one all"),
    ],
)
def test_a_module_has_the_sums_of_what_is_built_of_it(minor: str, suites: bool) -> None:
    packages = pin.packages(minor)
    assert "k8s.io/kubernetes/cmd/kubelet" in packages
    assert ("k8s.io/kubernetes/test/e2e_node" in packages) is suites
    assert (len(packages) > 1) is suites
