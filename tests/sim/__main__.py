"""`python -m tests.sim [--seeds N] [--seed N]`: run seeds of the simulation. Ends with 1 if one finds a violation."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from tests.sim.run import Outcome, be_quiet, run_seed

#: Each seed that ever found a bug, and why.
SEEDS: Final = Path(__file__).with_name("seeds.txt")


def main(arguments: Sequence[str]) -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    parser.add_argument("--seeds", type=int, default=500, help="how many seeds, beside those of seeds.txt")
    parser.add_argument("--first", type=int, default=1, help="the first of them")
    parser.add_argument("--seed", type=int, action="append", help="only this one, with the whole trace")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--stop-after", type=int, default=5, help="stop after so many seeds with violations")
    parser.add_argument("--without", default="", help="seeds that are left out, with commas")
    parser.add_argument("--lines", type=int, default=80, help="how many lines of a trace are shown")
    parser.add_argument("--digests", action="store_true", help="print the digest of each trace, to compare machines")
    given = parser.parse_args(arguments)
    be_quiet()
    begun = time.monotonic()
    if given.seed:
        outcomes: Iterable[Outcome] = (run_seed(seed, lines=10**6) for seed in given.seed)
    else:
        known = list(dict.fromkeys(known_seeds()))
        seeds = known + [seed for seed in range(given.first, given.first + given.seeds) if seed not in known]
        without = {int(seed) for seed in given.without.split(",") if seed}
        outcomes = _all([seed for seed in seeds if seed not in without], given.processes)
    failed, done, calls = 0, 0, Counter[str]()
    for outcome in outcomes:
        done += 1
        calls += outcome.calls
        if given.digests:
            _say(f"{outcome.seed} {outcome.digest}")
        if outcome.problems or given.seed:
            failed += bool(outcome.problems)
            show(outcome, given.lines if not given.seed else 10**6)
            if failed >= given.stop_after and not given.seed:
                break
    seconds = time.monotonic() - begun
    total = sum(calls.values())
    good = sum(count for name, count in calls.items() if name.endswith(" OK"))
    _say(f"{done} seeds in {seconds:.1f} s, {total} calls, {good} of them OK; {failed} seeds found violations")
    return 1 if failed else 0


def known_seeds() -> Iterator[int]:
    """The seeds of the file, in its order."""
    for line in SEEDS.read_text().splitlines():
        if line.strip() and not line.startswith("#"):
            yield int(line.split()[0])


def _all(seeds: Sequence[int], processes: int) -> Iterator[Outcome]:
    if processes == 1:
        yield from map(run_seed, seeds)
        return
    # A worker imports what it runs, and cannot import this module.
    with multiprocessing.get_context("spawn").Pool(processes, initializer=be_quiet) as pool:
        yield from pool.imap_unordered(run_seed, seeds, chunksize=4)


def show(outcome: Outcome, lines: int) -> None:
    """Print what a seed has found."""
    lines = min(lines, len(outcome.trace))
    _say(f"seed {outcome.seed}: {len(outcome.problems)} violations, {outcome.steps} steps")
    for line in outcome.trace[len(outcome.trace) - lines :]:
        _say(f"    {line}")
    for problem in outcome.problems:
        _say(f"  {problem}")
    _say(f"  again: python -m tests.sim --seed {outcome.seed}")


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _fix_order_of_sets() -> None:
    """Begin anew with hashes of texts that are the same in each process: else a seed is not the same run again."""
    if os.environ.get("PYTHONHASHSEED") != "0":
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "tests.sim", *sys.argv[1:]])


if __name__ == "__main__":
    _fix_order_of_sets()
    sys.exit(main(sys.argv[1:]))
