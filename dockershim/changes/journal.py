"""The journal of the steps that were done on this machine: what each one did, and what was there before.

It is one file, ``journal.json`` in a folder of its own, which is replaced as a whole. Next to it, in ``saved``, are the
files as they were before. An entry is written before its step begins, and marked when the step has ended, so at most
the last entry is of a step that was interrupted. An entry is removed when its step is undone.

Only root may read the folder: saved files can have secrets.
"""

from __future__ import annotations

import contextlib
import fcntl
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
    def _path(self) -> str:
        return f"{self._folder}/journal.json"

    def copy_of(self, entry: Entry) -> str:
        """The path of the file as it was before the step."""
        return f"{self._folder}/saved/{entry.saved.name if entry.saved else ''}"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """A block in which no other process changes the machine by this journal. Raises ChangeError if one does."""
        folders = self._disk.missing_folders(f"{self._folder}/saved/x")
        self._disk.make_folders(folders, _MODE)
        held = self._hold(self._disk.at(f"{self._folder}/lock"))
        try:
            # Another process may have changed it before the lock was ours.
            self._document = self._load()
            self._document = msgspec.structs.replace(self._document, folders=(*self._document.folders, *folders))
            try:
                yield
            finally:
                if not self.entries:
                    self._remove()
        finally:
            os.close(held)

    def _hold(self, path: Path) -> int:
        while True:
            try:
                held = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            except OSError as error:
                raise ChangeError(f"{self._folder}/lock: {error.strerror}") from error
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(held)
                raise ChangeError(
                    f"{self._folder}/lock: another process is changing this machine; wait for it"
                ) from None
            # The process before may have removed the file that we opened.
            with contextlib.suppress(FileNotFoundError):
                if path.stat().st_ino == os.fstat(held).st_ino:
                    return held
            os.close(held)

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
        done = msgspec.structs.replace(entry, done=True)
        self._store(tuple(done if one.number == entry.number else one for one in self.entries))

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
        document = msgspec.structs.replace(self._document, entries=entries)
        self._write(self._path, msgspec.json.format(msgspec.json.encode(document), indent=1))
        self._document = document

    def _write(self, path: str, content: bytes) -> None:
        self._disk.stage(path, FileState(content, stat.S_IRUSR | stat.S_IWUSR, os.geteuid(), os.getegid()))
        self._disk.commit(path)

    def _remove(self) -> None:
        """Leave nothing of a journal without entries."""
        folders = self._document.folders
        # A copy whose entry was not written, or was removed, before a crash.
        saved = self._disk.at(f"{self._folder}/saved")
        for leftover in saved.iterdir() if saved.is_dir() else ():
            leftover.unlink()
        for name in ("journal.json", "lock"):
            self._disk.discard(f"{self._folder}/{name}")
            self._disk.remove(f"{self._folder}/{name}")
        self._disk.remove_folders((*folders, self._folder, f"{self._folder}/saved"))
