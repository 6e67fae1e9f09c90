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
from tests.sim import run as run_module
from tests.sim.__main__ import known_seeds
from tests.sim.mutants import OLD_RACES
from tests.sim.run import _OutOfPatience, _patience

# Two of these run processes of a simulation one after the other: of ten seconds a busy machine makes more than sixty.
pytestmark = pytest.mark.timeout(300)

ROOT = Path(__file__).parents[3]


def run(module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run it in a process of its own, as the order of sets of texts belongs to a seed."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", module, *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120, check=False)


def some(count: int) -> tuple[str, ...]:
    """The arguments for so many seeds, without those that found something once."""
    return "--seeds", f"{count}", "--without", ",".join(map(str, known_seeds()))


def test_some_seeds_violate_nothing() -> None:
    done = run("tests.sim", *some(8))
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]


def test_a_seed_is_the_same_run_again_beside_itself() -> None:
    with ThreadPoolExecutor() as threads:
        first, second = threads.map(lambda seed: run("tests.sim", "--seed", seed), ("3", "3"))
    assert first.stdout.splitlines()[:-1] == second.stdout.splitlines()[:-1]


def test_a_seed_is_the_same_run_in_another_process() -> None:
    alone, beside = (run("tests.sim", *some(4), "--digests", *more) for more in ((), ("--processes", "2")))
    assert sorted(alone.stdout.splitlines()[:-1]) == sorted(beside.stdout.splitlines()[:-1]), beside.stderr[-2000:]


def test_a_folder_is_empty_whatever_a_killed_run_has_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sockets and links, too; and what a link leads to stays."""
    monkeypatch.setattr(run_module, "memory_folder", lambda: tmp_path)
    with run_module._folder(1) as folder:
        pass
    (tmp_path / "other").mkdir()
    (folder / "below").mkdir(parents=True)
    (folder / "nri.sock").touch()
    (folder / "link").symlink_to(tmp_path / "other")
    with run_module._folder(1) as again:
        assert again == folder
        assert list(again.iterdir()) == []
    assert list(tmp_path.iterdir()) == [tmp_path / "other"]


def test_a_link_in_the_place_of_its_folder_is_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever has a shell on the machine can make one there, and the simulation empties the folder."""
    monkeypatch.setattr(run_module, "memory_folder", lambda: tmp_path)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "precious").touch()
    (tmp_path / "dockershim-sim-1").symlink_to(tmp_path / "other")
    with pytest.raises(OSError, match="dockershim-sim-1"), run_module._folder(1):
        pass
    assert (tmp_path / "other" / "precious").exists()


def test_a_run_that_is_stuck_in_a_line_ends() -> None:
    def spin() -> None:
        while True:
            with contextlib.suppress(Exception):
                sum(range(1000))

    with pytest.raises(_OutOfPatience), _patience(0.01):
        spin()


def test_a_lock_that_is_not_taken_is_found() -> None:
    done = run("tests.sim.mutants", "--seeds", "0", "--only", "no-lock")
    assert "found no-lock" in done.stdout, done.stdout + done.stderr[-2000:]


def test_each_old_race_can_be_put_back() -> None:
    counts = {race.name: (REPOSITORY / race.file).read_text().count(race.old) for race in OLD_RACES}
    assert [name for name, count in counts.items() if count != 1] == []
