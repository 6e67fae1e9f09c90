"""A test that fails beside others is run once more, alone."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.node import cache, flaky
from tests.node.cache import REPOSITORY

pytestmark = pytest.mark.timeout(120)

DAY = r"\d{4}-\d\d-\d\d"
TESTS = """
import os, pathlib, pytest
MARK = pathlib.Path(__file__).parent / "mark"

@pytest.fixture
def finds_what_is_left():
    seen = MARK.exists()
    yield
    assert seen

def test_flaky(finds_what_is_left):
    seen = MARK.exists()
    MARK.touch()
    assert seen

def test_good():
    pass

@pytest.mark.parametrize("number", range(int(os.environ.get("BAD", "0"))))
def test_bad(number):
    assert False

@pytest.fixture(scope="module")
def made_late():
    seen = (MARK.parent / "late").exists()
    (MARK.parent / "late").touch()
    assert seen or not os.environ.get("LATE")

@pytest.mark.parametrize("number", range(9))
def test_late(made_late, number):
    pass

@pytest.fixture
def leaves():
    yield
    assert not os.environ.get("LEAVES")

def test_leaves(leaves):
    pass
"""


def run(
    tmp_path: Path, environment: Mapping[str, str] | None = None, processes: int = 2
) -> subprocess.CompletedProcess[str]:
    (tmp_path / "test_it.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    command = [sys.executable, "-m", "pytest", "-p", "tests.node.again", f"--again={sys.executable}", "-q"]
    return subprocess.run(
        [*command, f"-n{processes}", "test_it.py"],
        cwd=tmp_path,
        env={
            "PATH": "/usr/bin:/bin",
            "PYTHONPATH": str(REPOSITORY),
            "TEST_CACHE": str(tmp_path),
            **(environment or {}),
        },
        capture_output=True,
        text=True,
    )


def named(done: subprocess.CompletedProcess[str]) -> list[str]:
    return [line for line in done.stderr.splitlines() if line.startswith("FLAKY")]


def test_one_that_passes_alone_is_flaky_and_counted(tmp_path: Path) -> None:
    done = run(tmp_path)
    assert done.returncode == 0, done.stdout
    (line,) = named(done)
    assert re.fullmatch(rf"FLAKY test_it.py::test_flaky: {DAY}", line)
    (tmp_path / "mark").unlink()
    (line,) = named(run(tmp_path))
    assert re.fullmatch(rf"FLAKY test_it.py::test_flaky: {DAY}, {DAY} \(to be fixed or removed\)", line)


def test_a_fixture_of_many_tests_fails_once(tmp_path: Path) -> None:
    done = run(tmp_path, {"LATE": "yes"}, processes=0)
    assert done.returncode == 0, done.stdout
    assert len(named(done)) == 10


def test_one_that_fails_twice_fails_the_run(tmp_path: Path) -> None:
    done = run(tmp_path, {"BAD": "1"})
    assert done.returncode == 1
    assert "Once more, alone" in done.stderr
    assert named(done) == []


@pytest.mark.parametrize("environment", [{"BAD": "5"}, {"LEAVES": "yes"}], ids=["many fail", "something is left"])
def test_what_no_busy_machine_explains_is_not_run_again(tmp_path: Path, environment: dict[str, str]) -> None:
    done = run(tmp_path, environment)
    assert done.returncode == 1
    assert "Once more, alone" not in done.stderr


def test_flaky_tests_are_counted_by_day_for_a_month(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "CACHE", tmp_path)
    monkeypatch.setattr(flaky, "RECORD", tmp_path / "flaky-tests.jsonl")
    begin = datetime(2026, 1, 1, tzinfo=UTC)
    flaky.add(["a.py::test[x y]", "b.py::test"], begin)
    flaky.add(["b.py::test"], begin + timedelta(days=29))
    assert flaky.lines(begin + timedelta(days=29)) == {
        "b.py::test": "FLAKY b.py::test: 2026-01-01, 2026-01-30 (to be fixed or removed)",
        "a.py::test[x y]": "FLAKY a.py::test[x y]: 2026-01-01",
    }
    later = begin + timedelta(days=31)
    assert flaky.lines(later) == {"b.py::test": "FLAKY b.py::test: 2026-01-30"}
    flaky.add([], later)
    assert len(flaky.RECORD.read_text().splitlines()) == 1
