"""The journal of the steps that were done on this machine: what each one did, and what was there before.

It is one file, ``journal.json`` in a folder of its own, which is replaced as a whole. Next to it, in ``saved``, are the
files as they were before. An entry is written before its step begins, and marked when the step has ended, so at most
the last entry is of a step that was interrupted. An entry is removed when its step is undone.

A journal may have the whole plan, written before its first step: then the entries are always the beginning of the plan,
and the next process goes on where one has ended, whatever the machine looks like by then.

All journals below one folder have one lock, next to them: only one process at a time changes the machine.

Only root may read the folder: saved files can have secrets.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from dockershim.changes.disk import ChangeError, Disk, FileState
from dockershim.changes.steps import Step, WriteFile

_VERSION: Final = 1
_MODE: Final = 0o700
_LOCK: Final = "changes.lock"


class Saved(msgspec.Struct, frozen=True, kw_only=True):
    """A file as it was: the name of its copy in the folder ``saved``, its mode, and the numbers of its owner."""

    name: str
    mode: int
    uid: int
    gid: int


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """A step, and what it needs to be undone.

    ``saved`` is the file from before, None if there was none; ``folders`` are those that the step makes; ``value`` is
    the kernel's from before, None if the file did not exist. ``done`` is whether the step has ended.
    """

    number: int
    step: Step
    saved: Saved | None = None
    folders: tuple[str, ...] = ()
    value: str | None = None
    done: bool = False


class _Document(msgspec.Struct, frozen=True, kw_only=True):
    version: int
    entries: tuple[Entry, ...] = ()
    folders: tuple[str, ...] = ()
    plan: tuple[Step, ...] = ()
    note: str = ""


class _Version(msgspec.Struct):
    version: int


class Journal:
    """The journal in ``folder``. Nothing is made before the first entry. Raises ChangeError for a damaged file."""

    def __init__(self, folder: str, disk: Disk) -> None:
        self._folder = folder
        self._disk = disk
        self._document = self._load()

    @property
    def entries(self) -> Sequence[Entry]:
        """In the order in which their steps began."""
        return self._document.entries

    @property
    def plan(self) -> Sequence[Step]:
        """All steps that ``intend`` was called with; empty if it was not."""
        return self._document.plan

    @property
    def remaining(self) -> Sequence[Step]:
        """The steps of the plan that have not begun, or are undone."""
        return self._document.plan[len(self.entries) :]

    @property
    def note(self) -> str:
        """What ``write_note`` was called with last."""
        return self._document.note

    def intend(self, plan: Sequence[Step]) -> None:
        """Note which steps will be done. To be called before the first one begins."""
        self._save(msgspec.structs.replace(self._document, plan=tuple(plan), note=""))

    def write_note(self, text: str) -> None:
        """Keep a text that the steps need, for the next process too."""
        self._save(msgspec.structs.replace(self._document, note=text))

    @property
    def _path(self) -> str:
        return f"{self._folder}/journal.json"

    @property
    def _lock(self) -> str:
        return f"{Path(self._folder).parent}/{_LOCK}"

    def copy_of(self, entry: Entry) -> str:
        """The path of the file as it was before the step."""
        return f"{self._folder}/saved/{entry.saved.name if entry.saved else ''}"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """A block in which no other process changes the machine by a journal. Raises ChangeError if one does."""
        parents = self._disk.missing_folders(self._lock)
        self._disk.make_folders(parents, _MODE)
        is_ours = False
        try:
            with self._disk.locked(self._lock):
                is_ours = True
                # Another process may have changed it before the lock was ours.
                self._document = self._load()
                folders = (*parents, *self._disk.missing_folders(f"{self._folder}/saved/x"))
                self._disk.make_folders(folders, _MODE)
                self._document = msgspec.structs.replace(self._document, folders=(*self._document.folders, *folders))
                try:
                    yield
                finally:
                    if not self.entries:
                        self._remove()
        finally:
            # The lock was in them.
            if is_ours and not self.entries:
                self._disk.remove_folders(self._document.folders)

    def begin(self, step: Step, before: FileState | None = None, value: str | None = None) -> Entry:
        """Note that a step begins. ``before`` is the file that it changes, ``value`` the kernel's value."""
        number = 1 + max((entry.number for entry in self.entries), default=0)
        saved: Saved | None = None
        folders: tuple[str, ...] = ()
        if isinstance(step, WriteFile):
            folders = self._disk.missing_folders(step.path)
            if before is not None:
                saved = Saved(name=f"{number}-{Path(step.path).name}", mode=before.mode, uid=before.uid, gid=before.gid)
        entry = Entry(number=number, step=step, saved=saved, folders=folders, value=value)
        if before is not None:
            self._write(self.copy_of(entry), before.content)
        self._store((*self.entries, entry))
        return entry

    def finish(self, entry: Entry) -> None:
        """Note that the step has ended."""
        self._mark(entry, done=True)

    def reopen(self, entry: Entry) -> None:
        """Note that the undo of the step begins: what is interrupted now is neither done nor undone."""
        self._mark(entry, done=False)

    def _mark(self, entry: Entry, *, done: bool) -> None:
        marked = msgspec.structs.replace(entry, done=done)
        self._store(tuple(marked if one.number == entry.number else one for one in self.entries))

    def forget(self, entry: Entry) -> None:
        """Remove the entry of a step that is undone, and the copy of its file."""
        self._store(tuple(one for one in self.entries if one.number != entry.number))
        if entry.saved is not None:
            self._disk.remove(self.copy_of(entry))

    def before(self, entry: Entry) -> FileState | None:
        """The file as it was before the step; None if there was none. Raises ChangeError if the copy is gone."""
        if entry.saved is None:
            return None
        copy = self._disk.read(self.copy_of(entry))
        if copy is None:
            raise ChangeError(f"{self.copy_of(entry)}: the saved file does not exist")
        return FileState(copy.content, entry.saved.mode, entry.saved.uid, entry.saved.gid)

    def _load(self) -> _Document:
        found = self._disk.read(self._path)
        if found is None:
            return _Document(version=_VERSION)
        try:
            if msgspec.json.decode(found.content, type=_Version).version != _VERSION:
                raise ChangeError(f"{self._path}: is of a newer version of dockershim; use that version")
            return msgspec.json.decode(found.content, type=_Document)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise ChangeError(
                f"{self._path}: is damaged ({error}); the files from before are in {self._folder}/saved"
            ) from error

    def _store(self, entries: tuple[Entry, ...]) -> None:
        self._save(msgspec.structs.replace(self._document, entries=entries))

    def _save(self, document: _Document) -> None:
        self._write(self._path, msgspec.json.format(msgspec.json.encode(document), indent=1))
        self._document = document

    def _write(self, path: str, content: bytes) -> None:
        self._disk.stage(path, FileState(content, stat.S_IRUSR | stat.S_IWUSR, os.geteuid(), os.getegid()))
        self._disk.commit(path)

    def _remove(self) -> None:
        """Leave nothing of a journal without entries."""
        # A copy whose entry was not written, or was removed, before a crash.
        for name in self._disk.names(f"{self._folder}/saved"):
            self._disk.remove(f"{self._folder}/saved/{name}")
        self._disk.discard(self._path)
        self._disk.remove(self._path)
        self._disk.remove_folders((self._folder, f"{self._folder}/saved"))
