"""Does steps and undoes them.

Nothing here asks how far an interrupted step came: each looks at what is there now. A file that is as before is
written, one that is as wanted is left, and one that is neither was changed by others and is theirs. Commands may be run
twice.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from dockershim.changes.disk import ChangeError, Disk, FileState
from dockershim.changes.journal import Entry, Journal
from dockershim.changes.steps import NEW_CONTENT, Call, Command, Run, SetValue, Step, WriteFile, digest
from dockershim.common.text import escape

#: Seconds of one command: an engine with many containers needs minutes to restart.
_DEADLINE: Final = 600.0
_LONGEST_COMPLAINT: Final = 600

#: Runs the words of a program. Raises ChangeError if it fails.
Spawn = Callable[[Sequence[str]], None]


def _nothing(*_: str) -> None:
    """What many functions do when they are called, or undone."""


@dataclass(frozen=True, slots=True)
class Function:
    """What a ``Call`` calls, with its arguments, when it is done and when it is undone. Both raise ChangeError."""

    do: Callable[..., None] = _nothing
    undo: Callable[..., None] = _nothing


class Performer:
    """Does and undoes steps by a journal that this process has locked.

    ``conditions`` are those that commands may need, by name, ``functions`` those that are called; ``report`` gets a
    line for each thing that happens.
    """

    def __init__(
        self,
        *,
        disk: Disk,
        journal: Journal,
        spawn: Spawn,
        conditions: Mapping[str, Callable[[], bool]],
        report: Callable[[str], None],
        functions: Mapping[str, Function] | None = None,
    ) -> None:
        self._disk = disk
        self._journal = journal
        self._spawn = spawn
        self._conditions = conditions
        self._report = report
        self._functions = functions or {}

    def finish_interrupted(self) -> None:
        """Finish the step in which an earlier process ended, if there is one. Raises ChangeError."""
        for entry in self._journal.entries:
            if isinstance(entry.step, WriteFile):
                self._disk.discard(entry.step.path)  # it may have ended in an undo
            if not entry.done:
                self._report(f"finishing, as it was interrupted: {entry.step}")
                self._carry_out(entry)

    def do(self, step: Step) -> None:
        """Do one step. Raises ChangeError; the step can then be finished or undone."""
        self._report(str(step))
        self._carry_out(self._begin(step))

    def _begin(self, step: Step) -> Entry:
        match step:
            case WriteFile():
                before = self._disk.read(step.path)
                if digest(_content(before)) != step.before:
                    raise ChangeError(f"{step.path}: has changed since the plan was made; run the command again")
                return self._journal.begin(step, before)
            case SetValue():
                return self._journal.begin(step, value=self._disk.value(step.path))
            case Run() | Call():
                return self._journal.begin(step)

    def _carry_out(self, entry: Entry) -> None:
        match entry.step:
            case WriteFile() as step:
                self._write(entry, step)
            case SetValue() as step:
                self._disk.set_value(step.path, step.value)
            case Run() as step:
                self._run(step.command)
            case Call() as step:
                self._functions[step.name].do(*step.arguments)
        self._journal.finish(entry)

    def _write(self, entry: Entry, step: WriteFile) -> None:
        before, now = self._journal.before(entry), self._disk.read(step.path)
        if now is not None and now.content == step.content:
            self._disk.discard(step.path)
        else:
            wanted = FileState(step.content, step.mode, *_own_ids())
            if before is not None:
                wanted = replace(before, content=step.content)
            if _content(now) != _content(before):
                theirs = _put(now, *step.replaced) if step.replaced is not None else None
                if theirs is None:
                    self._report(f"{step.path}: was changed by others meanwhile, and stays as it is")
                    return
                wanted = theirs
            self._disk.make_folders(entry.folders)
            new = self._disk.stage(step.path, wanted)
            if step.check:
                self._check(entry, step, str(new))
            self._disk.commit(step.path)
        for command in step.then:
            self._run(command)

    def _check(self, entry: Entry, step: WriteFile, new: str) -> None:
        try:
            self._spawn([new if word == NEW_CONTENT else word for word in step.check])
        except ChangeError as error:
            # The step has ended before it changed anything.
            self._disk.discard(step.path)
            self._disk.remove_folders(entry.folders)
            self._journal.forget(entry)
            raise ChangeError(f"{step.path}: is not changed, as the new content is refused: {error}") from error

    def undo_all(self) -> list[str]:
        """Undo every step of the journal, the last one first, and go on after a failure.

        Returns a line for each step that could not be undone. Its entry stays, so it can be tried again.
        """
        problems = []
        for entry in reversed(self._journal.entries):
            try:
                self.undo(entry)
            except ChangeError as error:
                problems.append(str(error))
        return problems

    def undo(self, entry: Entry) -> None:
        """Undo a step. Raises ChangeError. Then its entry stays, so it can be tried again, or finished."""
        self._report(f"undo: {entry.step}")
        if not isinstance(entry.step, Call):
            self._journal.reopen(entry)
        self._undo(entry)
        self._journal.forget(entry)

    def _undo(self, entry: Entry) -> None:
        match entry.step:
            case Call() as step:
                if entry.done:
                    self._functions[step.name].undo(*step.arguments)
            case WriteFile() as step:
                self._restore(entry, step)
                self._run_each(step.undone)
            case SetValue() as step:
                if entry.value is not None and self._disk.value(step.path) == step.value:
                    self._disk.set_value(step.path, entry.value)
            case Run() as step:
                self._run_each(step.undo)

    def _restore(self, entry: Entry, step: WriteFile) -> None:
        self._disk.discard(step.path)
        before, now = self._journal.before(entry), self._disk.read(step.path)
        if _content(now) != _content(before):
            if now is None or now.content != step.content:
                before = self._without(entry, step, now)
            if before is None:
                self._disk.remove(step.path)
            else:
                self._disk.stage(step.path, before)
                self._disk.commit(step.path)
        self._disk.remove_folders(entry.folders)

    def _without(self, entry: Entry, step: WriteFile, now: FileState | None) -> FileState:
        """The file that others have changed since, without what the step has put there. Raises ChangeError."""
        if step.replaced is not None and (theirs := _put(now, *reversed(step.replaced))) is not None:
            self._report(f"{step.path}: was changed by others meanwhile; {step.replaced[0]} is put back")
            return theirs
        saved = f"; the file from before is {self._journal.copy_of(entry)}" if entry.saved else ""
        raise ChangeError(f"{step.path}: was changed since, and stays as it is{saved}")

    def _run_each(self, commands: Iterable[Command]) -> None:
        """Run all, also after a failure. Raises ChangeError with all that failed."""
        problems = []
        for command in commands:
            try:
                self._run(command)
            except ChangeError as error:
                problems.append(str(error))
        if problems:
            raise ChangeError("; ".join(problems))

    def _run(self, command: Command) -> None:
        if command.needs and not self._conditions[command.needs]():
            self._report(command.otherwise)
            return
        self._report(f"$ {command}")
        try:
            self._spawn(command.words)
        except ChangeError as error:
            if not command.may_fail:
                raise
            self._report(f"{error} (this is no failure of the command)")


def _content(state: FileState | None) -> bytes | None:
    return None if state is None else state.content


def _put(now: FileState | None, old: str, new: str) -> FileState | None:
    """A file with ``new`` in the place of ``old``, also if it has been there before; None if it has neither."""
    if now is None or not (old.encode() in now.content or new.encode() in now.content):
        return None
    return replace(now, content=now.content.replace(old.encode(), new.encode()))


def _own_ids() -> tuple[int, int]:
    return os.geteuid(), os.getegid()


def spawn(words: Sequence[str], seconds: float = _DEADLINE) -> None:
    """Run a program without input, for ``seconds`` at most. Raises ChangeError with what it wrote if it fails."""
    command = Command(words=tuple(words), reason="")
    try:
        done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        raise ChangeError(f"`{command}` did not end within {seconds:g} s") from None
    except OSError as error:
        raise ChangeError(f"cannot run {words[0]}: {error.strerror}") from error
    if done.returncode:
        wrote = (done.stderr or done.stdout).decode(errors="replace").strip()[-_LONGEST_COMPLAINT:]
        raise ChangeError(f"`{command}` failed with exit code {done.returncode}: {escape(wrote)}")
