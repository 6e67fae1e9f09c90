"""Copies one container's log from the engine's files to the CRI log, each line once."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dockershim.logs.alignment import align
from dockershim.logs.lines import time_of, to_cri
from dockershim.logs.position import Place, Position, PositionFile
from dockershim.logs.source import Sources
from dockershim.logs.target import Target

#: Bytes of engine lines that one turn converts: enough to make the cost of a turn small, few enough that a hundred
#: containers can wait for their turn and that the process stays small.
BATCH: Final = 256 * 1024
#: Bytes of removed engine files that may be held open for a container's backlog: two more files of the default size.
MOST_REMOVED: Final = 80 * 1024 * 1024
#: Seconds between two reports of missing bytes in one log.
REPORT_AGAIN: Final = 60.0
_NO_LINES: Final = "the engine's lines are invalid"


@dataclass(slots=True)
class Totals:
    """Bytes and lines of the engine that were copied, and how many bytes at least are missing in the CRI log."""

    bytes: int = 0
    lines: int = 0
    missing: int = 0

    def add(self, other: Totals) -> None:
        self.bytes += other.bytes
        self.lines += other.lines
        self.missing += other.missing


class Copying:
    """Copies the engine's ``source`` to ``target``, which is below the pod's ``directory`` of logs.

    Calls ``report`` with a sentence for bytes missing in the CRI log. ``totals`` cover this object's life.
    """

    def __init__(
        self, source: Path, directory: Path, target: Path, position: Path, report: Callable[[str], None]
    ) -> None:
        self._report = report
        self.totals = Totals()
        #: Missing bytes not yet reported, by ("at least " or "", reason); and the time of the next report.
        self._unreported: dict[tuple[str, str], int] = {}
        self._silent_until = 0.0
        self._path = target
        self._position_path = position
        self._positions: PositionFile | None = None
        self._source = source
        self._sources = Sources(source)
        self._target = Target(directory, target)
        #: Whether the CRI file may have lines, or a part of one, beyond the position: a write has failed.
        self._is_ahead = False

    # -- Where to continue. All of this can be repeated after an error.

    def _ready(self) -> PositionFile:
        """Open the files and continue where the last process stopped, unless that is done. Raises OSError."""
        if self._positions is not None:
            if not self._target.is_reachable():
                self._target.open()
                self._is_ahead = False
                self._keep(self._positions)
            if self._is_ahead:
                self._catch_up(self._positions)
            return self._positions
        self._sources.scan()
        positions = PositionFile(self._position_path)
        try:
            self._resume(positions)
        except OSError:
            positions.close()
            raise
        self._positions = positions
        return positions

    def _resume(self, positions: PositionFile) -> None:
        last = positions.last
        known = last is not None and self._sources.seek(last.source)
        if last is None or not known or positions.rebooted:
            self._align(None if known else last, rebooted=positions.rebooted)
            self._catch_up(positions)
        elif self._target.find(last.target):
            self._catch_up(positions)
        # The last process may have ended between making a file and answering. Without a loss of power, a CRI file that
        # does not match the position was emptied or removed by someone: its lines are not written again.
        if not self._target.is_open() or self._target.replaced():
            self._target.open()
        self._keep(positions)

    def _align(self, dropped: Position | None, *, rebooted: bool) -> None:
        """Continue after the last line that the CRI log has; from the engine's oldest line if it has none of them.

        ``dropped`` is a position whose lines the engine's files do not have any more.
        """
        tail = self._target.open_last()
        self._sources.close()
        self._sources = Sources(self._source)
        self._sources.scan()
        if tail and (place := self._place_behind(tail)):
            self._sources.seek(place)
        elif dropped:
            lost = self._sources.lost_at_least(dropped.source)
            # After a loss of power the engine's file may end before the position: then nothing was dropped.
            if lost or not rebooted:
                self._report_missing(lost, "the engine removed them in the meantime", at_least=True)

    def _place_behind(self, tail: bytes) -> Place | None:
        sources = Sources(self._source)
        try:
            sources.scan()
            return align(sources, tail)
        finally:
            sources.close()

    def _catch_up(self, positions: PositionFile) -> None:
        """Skip the lines that the CRI file has beyond the position, and complete its last line."""
        try:
            while written := self._target.beyond(2 * BATCH):
                lines = self._read(positions)
                cri, _ = to_cri(lines)
                if not lines or not written.startswith(cri):
                    self._match_lines(lines, written)
                    break
                self._pass(lines, len(cri))
            self._is_ahead = False
        finally:
            # Also if there was no room for the rest of a line: the next try continues here.
            self._keep(positions)

    def _match_lines(self, lines: bytes, written: bytes) -> None:
        """Like ``_catch_up``, line by line: for the last lines of the CRI file, the last of which may be torn."""
        start = 0
        while written and start < len(lines):
            end = lines.index(b"\n", start) + 1
            cri, _ = to_cri(lines[start:end])
            if not written.startswith(cri):
                if cri.startswith(written):
                    self._target.write(cri[len(written) :])
                    self._sources.advance(lines[start:end])
                    return
                break
            self._pass(lines[start:end], len(cri))
            written, start = written[len(cri) :], end
        if written:
            self._begin_anew()

    def _begin_anew(self) -> None:
        """Skip the rest of the CRI file. It does not match: the engine's lines are gone, or someone else wrote it.

        Ends a torn last line, so that the next line begins on its own.
        """
        if self._target.skip_rest() != b"\n":
            self._target.write(b"\n")

    def _read(self, positions: PositionFile) -> bytes:
        """Whole lines of the engine. A torn line at the end of a finished file is reported once."""
        lines, torn = self._sources.read(BATCH)
        if torn:
            self._report_missing(torn, _NO_LINES)
            self._keep(positions)
        return lines

    def _keep(self, positions: PositionFile) -> None:
        positions.write(Position(self._sources.place, self._target.place))

    def _pass(self, lines: bytes, written: int) -> None:
        self._sources.advance(lines)
        self._target.accept(written)

    # -- Copying.

    def scan(self, made: int = 0) -> None:
        """Open the engine's new files; events have reported ``made`` of them since the last scan. Raises OSError."""
        if lost := self._sources.scan(made):
            self._report_missing(lost, "the engine rotated faster than its files could be read", at_least=True)
        # The next step writes the position. A process that starts before that finds out itself that the files are gone.
        if lost := self._sources.drop_removed(MOST_REMOVED):
            self._report_missing(lost, "they were written faster than they could be copied")

    def look(self) -> None:
        """Like ``scan``, for a container without a watch: open new files if the engine has rotated. Raises OSError."""
        if self._sources.is_rotated():
            newest, _ = self._sources.end()
            self.scan()
            if not self._sources.has_name(newest):
                self._report_missing(0, "the engine removed files before they could be opened", at_least=True)

    def copy_batch(self) -> int:
        """Copy a batch; return how many bytes of the engine's files it had. Raises OSError: try again later."""
        if self._unreported:
            self._report_sometimes()
        positions = self._ready()
        lines = self._read(positions)
        if not lines:
            return 0
        cri, unreadable = to_cri(lines)
        self._is_ahead = True
        self._target.write(cri)
        self._is_ahead = False
        self._sources.advance(lines)
        self.totals.bytes += len(lines)
        self.totals.lines += lines.count(b"\n")
        if unreadable:
            self._report_missing(unreadable, _NO_LINES)
        self._keep(positions)
        return len(lines)

    def _report_missing(self, count: int, why: str, *, at_least: bool = False) -> None:
        self.totals.missing += count
        key = ("at least " if at_least else "", why)
        self._unreported[key] = self._unreported.get(key, 0) + count
        self._report_sometimes()

    def _report_sometimes(self) -> None:
        """Report at most once in a while, so that a container that writes too much does not fill the server's log."""
        if (now := time.monotonic()) >= self._silent_until:
            self._silent_until = now + REPORT_AGAIN
            self._report_all()

    def _report_all(self) -> None:
        for (at_least, why), count in self._unreported.items():
            amount = f"{at_least}{count} bytes are" if count else "lines may be"
            self._report(f"{amount} missing in {self._path}: {why}")
        self._unreported.clear()

    def reopen(self) -> None:
        """Write to a new file at the path from now on. Raises OSError, and changes nothing then."""
        positions = self._ready()
        if self._target.open():
            self._keep(positions)

    def end(self) -> tuple[int, int]:
        """Where the engine's lines end now. Raises OSError."""
        self._sources.scan()
        return self._sources.end()

    def is_past(self, end: tuple[int, int]) -> bool:
        """Whether all the lines before ``end`` are in the CRI file."""
        return self._sources.is_past(end)

    def unread(self) -> tuple[int, str]:
        """The number of bytes still to copy, and the engine's time of the first of these lines, if it is whole."""
        count = self._sources.unread()
        return count, time_of(self._sources.first_unread()) if count else ""

    def let_go(self) -> None:
        """While the log cannot be written: close files that the engine has removed."""
        if lost := self._sources.drop_removed():
            self._report_missing(lost, "they could not be written in time")
            with contextlib.suppress(OSError):
                self._keep_source()

    def _keep_source(self) -> None:
        """Write the position past the closed files, so that they are not reported again. Raises OSError."""
        positions = self._positions or PositionFile(self._position_path)
        try:
            if positions.last is not None and not positions.rebooted:
                positions.write(Position(self._sources.place, positions.last.target))
        finally:
            if self._positions is None:
                positions.close()

    def give_up(self) -> None:
        """The container is gone and copying ends: report the bytes that were not copied."""
        if unread := self._sources.unread():
            self._report_missing(unread, "they could not be written before its removal")

    def close(self) -> None:
        self._report_all()
        self._sources.close()
        self._target.close()
        if self._positions is not None:
            self._positions.close()
            self._positions = None


def in_words(error: Exception) -> str:
    """An error as text for a person; for an error of the system, the file and what is wrong with it."""
    if isinstance(error, OSError) and error.errno:
        return f"{error.filename}: {error.strerror}" if error.filename else os.strerror(error.errno)
    return repr(error)
