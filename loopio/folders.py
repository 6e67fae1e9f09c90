"""Follows a folder with inotify.

The folder may be made later or removed, and may be a symlink that changes, so every folder on the path to it is watched
too. Events only say when to read: after each change the whole folder is read again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final, Self

from asyncinotify import Event, Inotify, Mask

import background

log = logging.getLogger(__name__)

_DEBOUNCE: Final = 0.1
# Seconds between readings if the node has no inotify instance or watch left, as happens on crowded nodes.
_POLL: Final = 5.0
_ON_THE_WAY: Final = (
    Mask.CREATE | Mask.DELETE | Mask.MOVE | Mask.DELETE_SELF | Mask.MOVE_SELF | Mask.ONLYDIR | Mask.MASK_ADD
)
_IN_THE_FOLDER: Final = _ON_THE_WAY | Mask.CLOSE_WRITE


class FolderWatch:
    """Reads a folder at the start and after each change.

    ``read`` reads it and returns whether its users must know; then ``on_change`` is called, except after the first
    reading, which is done when :meth:`start` returns. The folder is read ``debounce`` seconds after the first event of
    a change, so that a burst of events leads to one reading. ``subfolders`` tells whether to watch these too.

    Files may be symlinks, but a change of the target in another folder is not noticed.
    """

    def __init__(
        self,
        folder: Path,
        read: Callable[[], bool],
        on_change: Callable[[], None] = lambda: None,
        *,
        subfolders: bool = False,
        debounce: float = _DEBOUNCE,
    ) -> None:
        self.folder = folder.absolute()
        self._read = read
        self._on_change = on_change
        self._subfolders = subfolders
        self._debounce = debounce
        self._inotify: Inotify | None = None
        # Which names matter in a watched folder; None: every name.
        self._names: dict[int, set[str] | None] = {}
        self._task: asyncio.Task[None] | None = None
        self._is_behind = False

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    @property
    def watches(self) -> int:
        """The number of folders that are watched."""
        return len(self._inotify.watches) if self._inotify is not None else 0

    async def start(self) -> None:
        """Read the folder and begin to watch it. Without inotify, the folder is read every 5 s."""
        try:
            self._inotify = Inotify(sync_timeout=0)
        except OSError as error:
            self._do_without_inotify(error)
        self._refresh()
        self._task = background.keep(self._follow, owner="folders", name=f"watch {self.folder}")

    async def close(self) -> None:
        """Stop watching. May be called twice."""
        task, self._task = self._task, None
        await background.end(task)
        if self._inotify is not None:
            self._inotify.close()
            self._inotify = None

    async def _follow(self) -> None:
        while True:
            # A reading that failed is made up for before the next change.
            if not self._is_behind:
                await self._next_change()
            self._is_behind = True
            is_changed = self._refresh()
            self._is_behind = False
            if is_changed:
                self._tell()

    async def _next_change(self) -> None:
        if self._inotify is None:
            await asyncio.sleep(_POLL)
            return
        while not self._concerns_us(await self._inotify.get()):
            pass
        await asyncio.sleep(self._debounce)
        # One reading is enough for all events so far.
        while self._inotify.sync_get() is not None:
            pass

    def _refresh(self) -> bool:
        # The watches come first: a change during the reading then makes an event, and so another reading.
        if self._inotify is not None:
            try:
                self._place_watches(self._inotify)
            except OSError as error:
                self._inotify.close()
                self._inotify = None
                self._do_without_inotify(error)
        return self._read()

    def _place_watches(self, inotify: Inotify) -> None:
        """Watch the folders on the path to the folder, the folder itself, and its subfolders if wanted."""
        self._names = {}
        for way in dict.fromkeys((self.folder, Path(os.path.realpath(self.folder)))):
            # From the root down: a folder that is made once its parent is watched makes an event.
            for folder, child in zip(reversed(way.parents), way.parts[1:], strict=True):
                self._watch(inotify, folder, child)
        if self._watch(inotify, self.folder, None) and self._subfolders:
            for entry in self.folder.iterdir():
                if entry.is_dir():
                    self._watch(inotify, entry, None)
        for stale in inotify.watches:
            if stale.wd not in self._names:
                with contextlib.suppress(OSError):  # the kernel may have removed it
                    inotify.rm_watch(stale)

    def _watch(self, inotify: Inotify, folder: Path, name: str | None) -> bool:
        try:
            watch = inotify.add_watch(folder, _IN_THE_FOLDER if name is None else _ON_THE_WAY)
        except (FileNotFoundError, NotADirectoryError):
            return False
        names = self._names.setdefault(watch.wd, set())
        if name is None:
            self._names[watch.wd] = None
        elif names is not None:
            names.add(name)
        return True

    def _concerns_us(self, event: Event) -> bool:
        if event.watch is None:
            return Mask.Q_OVERFLOW in event
        if Mask.IGNORED in event or event.watch.wd not in self._names:
            return False
        names = self._names[event.watch.wd]
        return names is None or event.name is None or str(event.name) in names

    def _do_without_inotify(self, error: OSError) -> None:
        log.warning("inotify is not available (%s): polling %s every %.0f s", error, self.folder, _POLL)

    def _tell(self) -> None:
        try:
            self._on_change()
        except Exception:
            log.exception("failed to handle a change of %s", self.folder)
