"""`python -m tests.mutants [--focus NAME]`: put each mistake of the lists into a copy of the code, and run its tests.

A mutant is killed if a test fails, or if the tests take too long. Prints the score of each package and the survivors.
Ends with 1 below 95 %, or if a mutant that is said to be equivalent is killed.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Final

from tests.mutants.table import REPOSITORY, Mutant, focused, read_mutants

#: What has to be killed of the mutants that are not equivalent.
_WANTED: Final = 0.95
#: Seconds for the tests of one mutant. The longest take a tenth of it on a quiet machine.
_LIMIT: Final = 300.0
#: What tests import and read.
_COPIED: Final = (
    *("dockershim", "background", "cni", "checkpoints", "loopio", "streaming"),
    *("tests", "bench", "deploy", "docs", "examples"),
    *("pyproject.toml", "Makefile", "README.md", "CHANGELOG.md"),
)
#: A mistake may keep tests from ending the processes that they start: these end with the shell, in a namespace of
#: theirs. The shell is process 1 there, which doctor takes for systemd.
_CONTAINED: Final = ("unshare", "--fork", "--pid", "--mount-proc", "--kill-child", "sh", "-c", '"$@"; exit $?', "sh")
#: How pytest ends if all tests passed; if it was called in a wrong way, or found no test.
_ALL_PASSED: Final = 0
_NO_TEST_RAN: Final = (4, 5)


@dataclass(frozen=True, slots=True)
class Result:
    """What became of a mutant; ``killer`` is the test that failed, empty if it survived."""

    mutant: Mutant
    killer: str
    seconds: float


class Copy:
    """A copy of the repository in ``folder``, in which the tests find no other code."""

    def __init__(self, folder: Path) -> None:
        self._root = folder
        self._changes = 0
        for name in _COPIED:
            source = REPOSITORY / name
            if source.is_dir():
                shutil.copytree(source, folder / name, symlinks=True)
            else:
                shutil.copy2(source, folder / name)

    def try_mutant(self, mutant: Mutant) -> Result:
        """Run its tests with the change, and take it back."""
        path = self._root / mutant.file
        times = path.stat().st_mtime_ns
        original = path.read_text()
        path.write_text(mutant.applied(original))
        # Python takes a compiled module for current if the second and the size of its source are the same.
        self._changes += 1
        os.utime(path, (self._changes, self._changes))
        begun = time.monotonic()
        try:
            killer = self.run(mutant.tests)
        finally:
            path.write_text(original)
            os.utime(path, ns=(times, times))
        return Result(mutant, killer, time.monotonic() - begun)

    def run(self, tests: Iterable[str]) -> str:
        """The first test that fails, or why there was no end; empty if all pass. Raises RuntimeError if none ran."""
        options = ("-x", "-q", "-p", "no:cacheprovider", "--hypothesis-seed=0", f"--basetemp={self._root}-tmp")
        command = [*_CONTAINED, sys.executable, "-m", "pytest", *options, *tests]
        try:
            done = subprocess.run(
                command,
                cwd=self._root,
                env={**os.environ, "PYTHONPATH": str(self._root)},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                timeout=_LIMIT,
            )
        except subprocess.TimeoutExpired:
            return f"no end within {_LIMIT:.0f} s"
        if done.returncode == _ALL_PASSED:
            return ""
        if done.returncode in _NO_TEST_RAN:
            raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout[-4000:]}")
        said = done.stdout.strip().splitlines()
        failed = [line for line in said if line.startswith(("FAILED ", "ERROR "))]
        # Without a test that failed it is pytest itself that the change has broken.
        return failed[0].split(" - ")[0].split(" ", 1)[1] if failed else f"an end with {done.returncode}: {said[-1:]}"


def main(arguments: Sequence[str]) -> int:
    """The exit code. Raises SystemExit if the mutants cannot be tried."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--focus", metavar="NAME", help="only those of a package, or whose file or text contains this")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="how many are tried at once")
    given = parser.parse_args(arguments)
    mutants = read_mutants()
    if given.focus and not (mutants := focused(mutants, given.focus)):
        parser.error(f"no mutant has a package, file or text {given.focus!r}")
    try:
        for mutant in mutants:
            mutant.applied((REPOSITORY / mutant.file).read_text())
        with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
            results = try_all(mutants, Path(folder), given.processes)
    except (OSError, RuntimeError, ValueError) as error:
        sys.exit(f"make mutants: {error}")
    text, is_good = report(results)
    _say(text)
    return 0 if is_good else 1


def try_all(mutants: Sequence[Mutant], folder: Path, processes: int) -> list[Result]:
    """Try each in one of so many copies. Raises RuntimeError if their tests fail without a change."""
    copies: SimpleQueue[Copy] = SimpleQueue()
    for number in range(processes):
        (folder / str(number)).mkdir()
        copies.put(Copy(folder / str(number)))

    def check(tests: tuple[str, ...]) -> None:
        copy = copies.get()
        try:
            if failed := copy.run(tests):
                raise RuntimeError(f"without any change, it fails: {failed}")
        finally:
            copies.put(copy)

    def attempt(mutant: Mutant) -> Result:
        copy = copies.get()
        try:
            return copy.try_mutant(mutant)
        finally:
            copies.put(copy)

    with ThreadPoolExecutor(processes) as threads:
        try:
            list(threads.map(check, sorted({mutant.tests for mutant in mutants})))
            results = []
            for done in as_completed([threads.submit(attempt, mutant) for mutant in mutants]):
                results.append(result := done.result())
                _say(f"{'killed  ' if result.killer else 'SURVIVES'} {result.seconds:5.1f} s  {result.mutant}")
                if result.killer:
                    _say(f"                   by {result.killer}")
        except BaseException:
            threads.shutdown(cancel_futures=True)
            raise
    return sorted(results, key=lambda result: mutants.index(result.mutant))


def report(results: Sequence[Result]) -> tuple[str, bool]:
    """What to tell of them, and whether that is good enough."""
    lines, real = ["", "package          killed"], [one for one in results if not one.mutant.equivalent]
    for package in sorted({one.mutant.package for one in results}):
        of_package = [one for one in real if one.mutant.package == package]
        killed = sum(bool(one.killer) for one in of_package)
        lines.append(f"{package:15} {killed:3} of {len(of_package)}")
    killed = sum(bool(one.killer) for one in real)
    share = killed / len(real) if real else 1.0
    lines.append(f"{'all':15} {killed:3} of {len(real)}: {share:.1%}; {_WANTED:.0%} are wanted")
    lines += [f"survives: {one.mutant}\n  {one.mutant.new.strip()!r}" for one in real if not one.killer]
    alike = [one for one in results if one.mutant.equivalent]
    lines += [f"equivalent: {one.mutant}\n  {one.mutant.equivalent}" for one in alike if not one.killer]
    wrong = [one for one in alike if one.killer]
    lines += [f"said to be equivalent, and killed by {one.killer}: {one.mutant}" for one in wrong]
    return "\n".join(lines), share >= _WANTED and not wrong


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
