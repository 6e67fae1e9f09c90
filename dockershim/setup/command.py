"""The command itself: examines the node, prints the plan, and applies it or undoes it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from dockershim.changes.disk import ChangeError, Disk
from dockershim.changes.journal import Journal
from dockershim.changes.perform import Performer, Spawn, spawn
from dockershim.changes.report import interrupted, is_root
from dockershim.changes.steps import Refused, WriteFile
from dockershim.doctor.check_process import examine
from dockershim.doctor.checks import Question
from dockershim.doctor.engine import containers_of
from dockershim.errors import ShimError
from dockershim.setup import daemon_json
from dockershim.setup.facts import Facts, engine_keeps_containers, look, no_container_runs
from dockershim.setup.plan import KEEPS_CONTAINERS, NO_CONTAINER, Wishes, make_plan
from dockershim.setup.report import Report

DONE: Final = 0
FAILED: Final = 1
INTERRUPTED: Final = 130
_SHOWN: Final = 5


@dataclass(frozen=True, slots=True)
class Machine:
    """What setup reads and changes. ``root`` is the folder of our state, in which the journal is.

    ``facts`` examines the node. ``containers_of`` gives the names of containers that have one of these runtimes; it
    raises ShimError. ``conditions`` are those of commands.
    """

    root: Path
    facts: Callable[[], Facts]
    disk: Disk
    spawn: Spawn
    containers_of: Callable[[frozenset[str]], Sequence[str]]
    conditions: Mapping[str, Callable[[], bool]]


def setup(question: Question, settings_folder: str, *, wishes: Wishes, apply: bool, undo: bool) -> int:
    """Print the plan, and do it with ``apply``; or ``undo`` all that was done. Returns the exit code.

    0, also if there is nothing to do; 1 if something failed or was refused; 130 after Ctrl-C. To be called before gRPC
    is loaded.
    """
    if not is_root("setup"):
        return FAILED
    disk, config = Disk(), question.config
    machine = Machine(
        root=config.root_directory,
        facts=lambda: look(question, examine(question), disk, settings_folder),
        disk=disk,
        spawn=spawn,
        containers_of=partial(containers_of, config),
        conditions={
            KEEPS_CONTAINERS: partial(engine_keeps_containers, config),
            NO_CONTAINER: partial(no_container_runs, config),
        },
    )
    return run(machine, Report(sys.stdout, sys.stderr), wishes=wishes, apply=apply, undo=undo)


def run(machine: Machine, report: Report, *, wishes: Wishes, apply: bool, undo: bool) -> int:
    """The same on any machine."""
    try:
        journal = Journal(f"{machine.root}/setup", machine.disk)
        if undo:
            return _undo(machine, journal, report)
        if apply:
            _apply(machine, journal, report, wishes)
        else:
            facts = machine.facts()
            report.plan(make_plan(facts, wishes), interrupted(journal.entries), facts.read)
    except (ChangeError, Refused, daemon_json.InvalidSettings) as error:
        report.failure(str(error))
        return FAILED
    except KeyboardInterrupt:
        report.failure("interrupted; setup --yes goes on, setup --undo undoes what was done")
        return INTERRUPTED
    return DONE


def _performer(machine: Machine, journal: Journal, report: Report) -> Performer:
    return Performer(
        disk=machine.disk,
        journal=journal,
        spawn=machine.spawn,
        conditions=machine.conditions,
        report=report.line,
    )


def _apply(machine: Machine, journal: Journal, report: Report, wishes: Wishes) -> None:
    """Raises ChangeError, Refused and InvalidSettings. Until the plan is made, only an old step is finished."""
    with journal.locked():
        performer = _performer(machine, journal, report)
        performer.finish_interrupted()
        facts = machine.facts()
        plan = make_plan(facts, wishes)
        report.plan(plan, (), facts.read)
        for step in plan.steps:
            try:
                performer.do(step)
            except ChangeError as error:
                remedy = "setup --yes tries it again, setup --undo undoes what was done"
                raise ChangeError(f"{error}. The steps after it were not done: {remedy}") from error
        if plan.steps:
            report.line("done; setup --undo takes it back")


def _undo(machine: Machine, journal: Journal, report: Report) -> int:
    """Raises ChangeError."""
    with journal.locked():
        if not journal.entries:
            report.line("nothing to undo")
            return DONE
        _check_runtimes(machine, journal, report)
        problems = _performer(machine, journal, report).undo_all()
        for problem in problems:
            report.failure(problem)
        if not problems:
            report.line("undone")
        return FAILED if problems else DONE


def _check_runtimes(machine: Machine, journal: Journal, report: Report) -> None:
    """Raises ChangeError if a container needs a runtime that the undo removes: the engine could not end it cleanly."""
    removed: frozenset[str] = frozenset()
    for entry in journal.entries:
        if isinstance(entry.step, WriteFile) and entry.step.path.endswith(".json"):
            before = journal.before(entry)
            removed |= daemon_json.runtimes(entry.step.content) - daemon_json.runtimes(
                before.content if before is not None else None
            )
    if not removed:
        return
    try:
        users = machine.containers_of(removed)
    except ShimError as error:
        # An engine that does not start, maybe because of its configuration, must not be in the way.
        report.line(f"the engine does not say which containers use {', '.join(sorted(removed))}: {error}")
        return
    if users:
        names = ", ".join(users[:_SHOWN]) + (", ..." if len(users) > _SHOWN else "")
        raise ChangeError(
            f"{len(users)} containers use the runtime {', '.join(sorted(removed))}, without which the engine cannot "
            f"end them: {names}. Drain the node and remove them, then undo again"
        )
