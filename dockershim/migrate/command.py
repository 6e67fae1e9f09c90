"""The command itself: shows the plan, moves the node, and returns it."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from dockershim.changes.disk import ChangeError, Disk
from dockershim.changes.journal import Journal
from dockershim.changes.perform import Function, Performer, Spawn, spawn
from dockershim.changes.report import NOTHING, Report, interrupted, is_root
from dockershim.changes.steps import Refused
from dockershim.doctor.units import KUBELET_UNIT, show
from dockershim.errors import ShimError
from dockershim.migrate import pods, ready, way_back
from dockershim.migrate.facts import Facts, command_line, look
from dockershim.migrate.plan import BEGIN, COMPARE, HAND_OVER, NOTE, OPEN, WAIT, Plan, make_plan
from dockershim.migrate.pods import Pods
from dockershim.network.netns import Pins
from dockershim.server.config import Config

DONE: Final = 0
FAILED: Final = 1
#: Neither side serves the node as it should: one more call is needed.
HALF_WAY: Final = 3
INTERRUPTED: Final = 130
#: Seconds of one systemctl: an old unit may have no limit of its own.
_SYSTEMCTL: Final = 90.0
_SHOWN: Final = 10
_ONE_MORE: Final = "migrate --yes goes on, migrate --back returns the node to cri-dockerd"


@dataclass(frozen=True, slots=True)
class Machine:
    """What a move reads and changes. ``root`` is the folder of our state, in which the journal is.

    ``facts`` reads the node, ``pods`` what a CRI server reports (ChangeError), ``node`` the kubelet's Node
    (``ready.Unreadable``). ``wait_until_ready`` gives how it knows (ChangeError). ``losses`` are those of a way back
    (ShimError), ``check_startable`` takes units of cri-dockerd (ChangeError), ``unpin`` removes our pins (OSError).
    """

    root: Path
    disk: Disk
    spawn: Spawn
    facts: Callable[[], Facts]
    pods: Callable[[str], Pods]
    node: Callable[[], ready.Node]
    wait_until_ready: Callable[[], str]
    losses: Callable[[], Sequence[str]]
    check_startable: Callable[[Sequence[str]], None]
    unpin: Callable[[], None]


def migrate(config: Config, settings_folder: str, *, apply: bool, back: bool, keep_socket: bool) -> int:
    """Print the plan, and do it with ``apply``; or return ``back``. Gives the exit code.

    0, also if there is nothing to do; 1 if it was refused, or failed and the node is on the side where it was; 3 if it
    failed and one more call is needed; 130 after Ctrl-C. To be called before gRPC is loaded.
    """
    if not is_root("migrate"):
        return FAILED
    # A move goes on when the connection to the node is lost.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    disk = Disk()
    machine = Machine(
        root=config.root_directory,
        disk=disk,
        spawn=partial(spawn, seconds=_SYSTEMCTL),
        facts=lambda: look(config, disk, settings_folder),
        pods=pods.read,
        node=lambda: ready.read_node(_kubelet()[0]),
        wait_until_ready=_wait_until_ready,
        losses=lambda: way_back.losses(config),
        check_startable=way_back.check_startable,
        unpin=lambda: _unpin(Pins(config.state_directory)),
    )
    return Move(machine, Report(sys.stdout, sys.stderr)).run(apply=apply, back=back, keep_socket=keep_socket)


def _kubelet() -> tuple[list[str], float]:
    """The command line of the kubelet, and when it was started, in seconds since 1970."""
    unit = show([KUBELET_UNIT]).get(KUBELET_UNIT)
    if unit is None or not unit.pid:
        return [], 0.0
    return command_line(unit.pid), time.time() - (time.monotonic() - unit.started)


def _wait_until_ready() -> str:
    # Its command line is read each time: at first it may still be that of systemd, which starts it.
    return ready.wait_until_ready(
        lambda: ready.check_health(_kubelet()[0]), lambda: ready.read_node(_kubelet()[0]), _kubelet()[1]
    )


def _unpin(pins: Pins) -> None:
    for sandbox_id in pins.pinned():
        pins.unpin(sandbox_id)


class Move:
    """One call of the command on a machine."""

    def __init__(self, machine: Machine, report: Report) -> None:
        self._machine = machine
        self._report = report
        #: Whether pods that differ, or a kubelet that is not Ready, are only reported: there is no other way to go.
        self._only_reports = False
        self._complaints = 0

    def run(self, *, apply: bool = False, back: bool = False, keep_socket: bool = False) -> int:
        """The exit code."""
        try:
            journal = Journal(f"{self._machine.root}/migrate", self._machine.disk)
            if not (apply or back):
                return self._show(journal, keep_socket)
            with journal.locked():
                performer = self._performer(journal)
                return self._back(journal, performer) if back else self._apply(journal, performer, keep_socket)
        except (ChangeError, Refused) as error:
            self._report.failure(str(error))
            return FAILED
        except KeyboardInterrupt:
            self._report.failure(f"interrupted; {_ONE_MORE}")
            return INTERRUPTED

    # -- What is shown.

    def _show(self, journal: Journal, keep_socket: bool) -> int:
        """Raises ChangeError and Refused. Changes nothing."""
        if not journal.entries:
            self._show_plan(*self._plan(keep_socket))
            self._report.line("nothing was changed; migrate --yes does it")
        elif _is_complete(journal):
            self._report.line("this node has moved to dockershim; migrate --back would undo, in this order:")
            for entry in reversed(journal.entries):
                self._report.line(f"  {entry.step}")
            self._show_losses()
        else:
            self._show_interrupted(journal)
        return DONE

    def _plan(self, keep_socket: bool) -> tuple[Plan, Facts]:
        facts = self._machine.facts()
        return make_plan(facts, keep_socket=keep_socket), facts

    def _show_plan(self, plan: Plan, facts: Facts) -> None:
        """Raises Refused if the node is not as it should be before a move, and ChangeError."""
        self._report.line(f"cri-dockerd serves on {plan.old}: {self._machine.pods(plan.old)}")
        self._report.steps(plan.steps, facts.read)
        for note in (*plan.notes, *self._of_node(plan)):
            self._report.line(f"note: {note}")

    def _of_node(self, plan: Plan) -> list[str]:
        """What the Node means for the plan. Raises Refused."""
        if not any(str(step) == BEGIN for step in plan.steps):
            return []
        command = f"kubectl annotate node NAME --overwrite {ready.ANNOTATION}={plan.new}"
        try:
            node = self._machine.node()
        except ready.Unreadable as error:
            if plan.new == plan.old:
                return [f"the Node cannot be read: {error}"]
            return [f"the Node cannot be read: {error}. If it has the annotation of kubeadm, run afterwards: {command}"]
        if not node.ready:
            raise Refused(f"Node {node.name} is not Ready ({node.message}); fix that first, to see what a move does")
        if plan.new == plan.old or not node.socket:
            return []
        command = command.replace("NAME", node.name)
        return [f"kubeadm reads the socket in the annotation of the Node ({node.socket}), run afterwards: {command}"]

    def _show_interrupted(self, journal: Journal) -> None:
        done = sum(1 for entry in journal.entries if entry.done)
        self._report.line(f"a move was interrupted: {done} of {len(journal.plan)} steps are done; {_ONE_MORE}")
        for entry in interrupted(journal.entries):
            self._report.line(f"interrupted: {entry.step}")

    def _show_losses(self) -> None:
        try:
            lines = self._machine.losses()
        except ShimError as error:
            lines = [f"the engine does not say what cri-dockerd cannot do with the pods: {error}"]
        for line in lines:
            self._report.line(f"note: {line}")

    # -- Forward.

    def _apply(self, journal: Journal, performer: Performer, keep_socket: bool) -> int:
        """Raises ChangeError and Refused before anything is changed."""
        if [entry.number for entry in journal.entries] != list(range(1, len(journal.entries) + 1)):
            raise ChangeError("some steps of a move could not be undone; run migrate --back first")
        if _is_complete(journal):
            self._end(journal)
            self._report.line(f"{NOTHING}: this node has moved to dockershim; migrate --back returns it")
            return DONE
        if not journal.entries:
            plan, facts = self._plan(keep_socket)
            self._show_plan(plan, facts)
            journal.intend(plan.steps)
        else:
            self._show_interrupted(journal)
        try:
            self._go_on(journal, performer)
        except ChangeError as error:
            self._report.failure(f"{error}. The node returns to cri-dockerd")
            return FAILED if self._undo_all(journal, performer) else HALF_WAY
        self._report.line("done; migrate --back returns the node to cri-dockerd")
        return DONE

    def _go_on(self, journal: Journal, performer: Performer) -> None:
        """Do what is left of the plan. Raises ChangeError."""
        performer.finish_interrupted()
        for step in journal.remaining:
            performer.do(step)
        self._end(journal)

    def _end(self, journal: Journal) -> None:
        """What was compared is over: pods come and go from now on."""
        if journal.note:
            journal.write_note("")

    # -- Back.

    def _back(self, journal: Journal, performer: Performer) -> int:
        if not journal.entries:
            self._report.line("nothing to return from: no move was made by this command")
            return DONE
        self._show_losses()
        if not _is_complete(journal):
            if not self._undo_all(journal, performer):
                return HALF_WAY
            return FAILED if self._complaints else DONE
        try:
            for entry in reversed(journal.entries):
                performer.undo(entry)
        except ChangeError as error:
            self._report.failure(f"{error}. The node stays with dockershim")
            try:
                self._go_on(journal, performer)
            except ChangeError as again:
                self._report.failure(f"{again}; {_ONE_MORE}")
                return HALF_WAY
            return FAILED
        self._report.line("the node is back at cri-dockerd")
        return DONE

    def _undo_all(self, journal: Journal, performer: Performer) -> bool:
        """Undo what is done, and go on after a failure, as a node needs a server. Whether all of it is undone."""
        self._only_reports = True
        for problem in performer.undo_all():
            self._report.failure(problem)
        if journal.entries:
            self._report.failure("not all could be undone; migrate --back tries it again")
            return False
        self._report.line("the node is back at cri-dockerd")
        return True

    # -- What steps call.

    def _performer(self, journal: Journal) -> Performer:
        machine = self._machine

        def note(endpoint: str) -> None:
            found = machine.pods(endpoint)
            self._report.line(f"{endpoint}: {found}")
            journal.write_note(msgspec.json.encode(found).decode())

        def note_once(endpoint: str) -> None:
            # One that is there is of the side from which the move began.
            if not journal.note:
                note(endpoint)

        def compare(endpoint: str) -> None:
            if not journal.note:
                return
            before = msgspec.json.decode(journal.note, type=Pods)
            if found := pods.differences(before, machine.pods(endpoint)):
                more = f"; and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
                text = f"{endpoint} does not report what was there before: {'; '.join(found[:_SHOWN])}{more}"
                raise ChangeError(text)

        def wait(endpoint: str) -> None:
            self._report.line(machine.wait_until_ready())
            compare(endpoint)

        def or_report(check: Callable[[str], None], endpoint: str) -> None:
            try:
                check(endpoint)
            except ChangeError as error:
                if not self._only_reports:
                    raise
                self._complaints += 1
                self._report.failure(str(error))

        def hand_over(source: str, target: str) -> None:
            way_back.hand_over(machine.disk, source, target)
            try:
                machine.unpin()
            except OSError as error:
                self._report.line(f"pins of network namespaces stay until the next boot: {error}")

        return Performer(
            disk=machine.disk,
            journal=journal,
            spawn=machine.spawn,
            conditions={},
            report=self._report.line,
            functions={
                BEGIN: Function(undo=partial(or_report, wait)),
                NOTE: Function(do=note, undo=partial(or_report, compare)),
                HAND_OVER: Function(undo=hand_over),
                COMPARE: Function(do=compare, undo=partial(or_report, note_once)),
                WAIT: Function(do=wait),
                OPEN: Function(undo=lambda *names: machine.check_startable(names)),
            },
        )


def _is_complete(journal: Journal) -> bool:
    return bool(journal.plan) and not journal.remaining and not interrupted(journal.entries)
