"""Some seeds of the simulation of the whole server, and a mistake that it finds."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.mutants.table import REPOSITORY
from tests.sim.mutants import OLD_RACES
from tests.sim.run import _OutOfPatience, _patience

ROOT = Path(__file__).parents[3]


def run(module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run it in a process of its own, as the order of sets of texts belongs to a seed."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", module, *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120, check=False)


def test_some_seeds_violate_nothing() -> None:
    done = run("tests.sim", "--seeds", "8")
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]


def test_a_seed_is_the_same_run_again_beside_itself() -> None:
    with ThreadPoolExecutor() as threads:
        first, second = threads.map(lambda seed: run("tests.sim", "--seed", seed), ("3", "3"))
    assert first.stdout.splitlines()[:-1] == second.stdout.splitlines()[:-1]


def test_a_seed_is_the_same_run_in_another_process() -> None:
    alone, beside = (run("tests.sim", "--seeds", "4", "--digests", *more) for more in ((), ("--processes", "2")))
    assert sorted(alone.stdout.splitlines()[:-1]) == sorted(beside.stdout.splitlines()[:-1]), beside.stderr[-2000:]


def test_a_run_that_is_stuck_in_a_line_ends() -> None:
    def spin() -> None:
        while True:
            with contextlib.suppress(Exception):
                sum(range(1000))

    with pytest.raises(_OutOfPatience), _patience(0.01):
        spin()


def test_a_lock_that_is_not_taken_is_found() -> None:
    done = run("tests.sim.mutants", "--seeds", "8", "--only", "no-lock")
    assert "found no-lock" in done.stdout, done.stdout + done.stderr[-2000:]


def test_each_old_race_can_be_put_back() -> None:
    counts = {race.name: (REPOSITORY / race.file).read_text().count(race.old) for race in OLD_RACES}
    assert [name for name, count in counts.items() if count != 1] == []
