"""`python -m tests.sim.mutants`: put mistakes into the code one by one, and see which of them the simulation finds.

The mistakes are those of `tests/mutants` that are about order, locks and failures, and old races. A mistake counts as
found at a seed at which the code without it violates nothing.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.mutants.table import REPOSITORY, read_mutants

_COPIED: Final = ("dockershim", "background", "cni", "checkpoints", "streaming", "loopio", "tests")
_PACKAGES: Final = ("cri", "state", "network", "common", "nri", "cni", "hooks", "engine")
_FOUND: Final = re.compile(r"^seed (\d+): (\d+) violations", re.MULTILINE)
_LIMIT: Final = 900.0


@dataclass(frozen=True, slots=True)
class Mistake:
    """A change of ``old`` to ``new`` in ``file``."""

    name: str
    file: str
    old: str
    new: str
    breaks: str


#: No lock at all, and races that were real bugs once, put back.
OLD_RACES: Final = (
    Mistake(
        "no-lock",
        "dockershim/state/pods.py",
        "async with self._locks.hold(sandbox_id):",
        "if True:",
        "pods have no lock",
    ),
    Mistake(
        "race-run",
        "dockershim/cri/sandbox_run.py",
        'self.pods.locked(sandbox_id) as pod, rollback("RunPodSandbox", _UNDO_DEADLINE, undo):',
        "self.pods.locked(sandbox_id) as pod:",
        "the undo of RunPodSandbox runs outside of the pod's lock",
    ),
    Mistake(
        "race-create",
        "dockershim/cri/container_create.py",
        """        async with rollback("CreateContainer", _UNDO_DEADLINE) as undo:
            with step("create the container"):""",
        """        async with __import__("contextlib").nullcontext(new.undo) as undo:
            with step("create the container"):""",
        "the undo of CreateContainer runs outside of the pod's lock",
    ),
    Mistake(
        "race-short-id",
        "dockershim/cri/sandbox_run.py",
        """            self.pods.begin(sandbox_id)
            async with self.pods.locked(sandbox_id) as pod, rollback("RunPodSandbox", _UNDO_DEADLINE, undo):""",
        """            self.pods.begin(sandbox_id)
            undo.push("forget the sandbox", lambda: asyncio.sleep(0, self.pods.forget(sandbox_id)))
            async with self.pods.locked(sandbox_id) as pod:""",
        "a run that fails forgets its pod first: a stop by a short id is answered OK while the infra container runs",
    ),
    Mistake(
        "race-start",
        "dockershim/cri/sandbox_stop.py",
        "if record is not None and record.never_ran:",
        "if False:",
        "a stop does not wait for a start of the infra container that was given up",
    ),
    Mistake(
        "race-early-stop",
        "dockershim/cri/sandbox_run.py",
        "if pod.was_stopped:",
        "if False:",
        "a stop between the engine's create and its answer is answered OK, and the sandbox is started",
    ),
    Mistake(
        "race-failed-run",
        "dockershim/state/pods.py",
        "if self.has_failed:\n            return",
        "if False:\n            return",
        "a sandbox whose RunPodSandbox has failed, and that could not be removed, is ready",
    ),
    Mistake(
        "race-late-draft",
        "dockershim/cri/engine_containers.py",
        "if container_id is not None or time.monotonic() >= left.until:",
        "if True:",
        "a draft that the engine makes after its create was given up stays",
    ),
    Mistake(
        "race-end-twice",
        "dockershim/nri/events.py",
        " or to_nri.known_as(before) in self._creations",
        "",
        "the removal of a container whose create has failed tells plugins of its end, beside the undo",
    ),
    Mistake(
        "race-caller-gone",
        "dockershim/cri/container_create.py",
        'await run_to_completion(self._finish(chain, new, container_id), f"finish the create of {container_id}")',
        "await self._finish(chain, new, container_id)",
        "a caller that goes at the end of a create leaves its draft",
    ),
)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sim.mutants", description=__doc__)
    parser.add_argument("--seeds", type=int, default=60)
    parser.add_argument("--only", action="append", help="a mistake by its name, as cri-3; may be repeated")
    given = parser.parse_args(arguments)
    mistakes = [one for one in _mistakes() if not given.only or one.name in given.only]
    with tempfile.TemporaryDirectory(prefix="sim-mutants-") as name:
        folder = Path(name)
        for part in _COPIED:
            shutil.copytree(REPOSITORY / part, folder / part, symlinks=True)
        bad = _run(folder, given.seeds, (), stop_after=given.seeds)
        if bad is None:
            sys.exit("the simulation does not run without a mistake")
        _say(f"without a mistake, seeds with violations: {sorted(bad) or 'none'}")
        found = 0
        for mistake in mistakes:
            seeds = _try(folder, mistake, given.seeds, tuple(bad))
            found += seeds.isdecimal()
            verdict = "found" if seeds.isdecimal() else "NOT  "
            _say(f"{verdict} {mistake.name:14} {seeds:>5} {mistake.file}: {mistake.breaks}")
    _say(f"{found} of {len(mistakes)} are found with {given.seeds} seeds")
    return 0


def _mistakes() -> list[Mistake]:
    found = list(OLD_RACES)
    counts: dict[str, int] = {}
    for mutant in read_mutants():
        number = counts[mutant.package] = counts.get(mutant.package, -1) + 1
        if mutant.package in _PACKAGES and not mutant.equivalent:
            found.append(Mistake(f"{mutant.package}-{number}", mutant.file, mutant.old, mutant.new, mutant.breaks))
    return found


def _try(folder: Path, mistake: Mistake, seeds: int, without: tuple[int, ...]) -> str:
    """The first seed at which it is found; else why not, empty if all of them passed."""
    path = folder / mistake.file
    original = path.read_text()
    if original.count(mistake.old) != 1:
        return f"(its text is there {original.count(mistake.old)} times)"
    path.write_text(original.replace(mistake.old, mistake.new))
    try:
        found = _run(folder, seeds, without, stop_after=1)
    finally:
        path.write_text(original)
    if found is None:
        return "(it hangs, or does not run)"
    return f"{min(found)}" if found else ""


def _run(folder: Path, seeds: int, without: tuple[int, ...], *, stop_after: int) -> set[int] | None:
    """The seeds with violations; None if the simulation did not come to its end, which says nothing."""
    command = [sys.executable, "-B", "-m", "tests.sim", "--seeds", str(seeds), "--stop-after", str(stop_after)]
    command += ["--lines", "0", "--without", ",".join(map(str, without))]
    environment = {**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, timeout=_LIMIT, check=False
        )
    except subprocess.TimeoutExpired:
        return None
    if done.returncode not in (0, 1) or "seeds found violations" not in done.stdout:
        return None
    return {int(seed) for seed, _ in _FOUND.findall(done.stdout)}


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
