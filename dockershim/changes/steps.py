"""The steps of a change, as data: they are shown, written into the journal, and done.

The journal on disk has them as JSON, which later versions read. So a field may be added with a default, and none may
be renamed or removed.
"""

from __future__ import annotations

import hashlib
import shlex

import msgspec

#: Stands for the path of the new content in ``WriteFile.check``.
NEW_CONTENT = "{}"


class Command(msgspec.Struct, frozen=True, kw_only=True):
    """A program that is run, without a shell. ``reason`` is for people.

    ``needs`` names a condition that has to hold when the command is due, such as "no container runs"; empty for none.
    If it does not hold, the command is left out, and ``otherwise`` is reported. ``may_fail``: a failure is reported,
    and does not count as one.
    """

    words: tuple[str, ...]
    reason: str
    needs: str = ""
    otherwise: str = ""
    may_fail: bool = False

    def __str__(self) -> str:
        return shlex.join(self.words)


class WriteFile(msgspec.Struct, frozen=True, kw_only=True, tag="write-file"):
    """Give a file this content. Undone, it has the content, mode and owner from before, or does not exist again.

    ``before`` is the ``digest`` of the content for which this one was made, so that a change in between is not lost.
    A file that exists keeps its mode, a new one gets ``mode``. ``check`` are the words of a program that must accept
    the new content, with ``NEW_CONTENT`` for its path. ``then`` are run when the file has changed, ``undone`` when it
    has changed back. ``replaced`` are a text of the file from before and what is in its place: if others have changed
    the file since, the undo puts the first in the place of the second, and leaves the rest to them.
    """

    path: str
    content: bytes
    reason: str
    before: str
    mode: int = 0o644
    check: tuple[str, ...] = ()
    then: tuple[Command, ...] = ()
    undone: tuple[Command, ...] = ()
    replaced: tuple[str, str] | None = None

    def __str__(self) -> str:
        return f"write {self.path}"


class SetValue(msgspec.Struct, frozen=True, kw_only=True, tag="set-value"):
    """Give a file of the kernel below /proc/sys this value, without a newline."""

    path: str
    value: str
    reason: str

    def __str__(self) -> str:
        return f"set {self.path} to {self.value}"


class Run(msgspec.Struct, frozen=True, kw_only=True, tag="run"):
    """Run a command that may be run twice. ``undo`` are those that take its effect away, also if it had none."""

    command: Command
    undo: tuple[Command, ...] = ()

    def __str__(self) -> str:
        return str(self.command)


class Call(msgspec.Struct, frozen=True, kw_only=True, tag="call"):
    """Call a function of the program by its name: it waits for something, compares, or does nothing until it is undone.

    It may be called twice. Only one that has ended is undone, by another function, or not at all.
    """

    name: str
    reason: str
    arguments: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.name


Step = WriteFile | SetValue | Run | Call


class Refused(Exception):
    """What was asked for cannot be planned, so nothing is changed; the text has the reason and the remedy."""


def write_file(
    path: str,
    before: bytes | None,
    content: bytes,
    reason: str,
    *,
    mode: int = 0o644,
    check: tuple[str, ...] = (),
    then: tuple[Command, ...] = (),
    undone: tuple[Command, ...] = (),
    replaced: tuple[str, str] | None = None,
) -> list[WriteFile]:
    """The step that gives a file this content; none if it has it already. ``before`` is what it has, if it exists."""
    if content == before:
        return []
    step = WriteFile(
        path=path,
        content=content,
        reason=reason,
        before=digest(before),
        mode=mode,
        check=check,
        then=then,
        undone=undone,
        replaced=replaced,
    )
    return [step]


def digest(content: bytes | None) -> str:
    """What ``WriteFile.before`` has of a content; empty for a file that does not exist."""
    return "" if content is None else hashlib.sha256(content).hexdigest()
