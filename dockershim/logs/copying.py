"""One container's log, from the engine's files into the CRI's, each line once."""

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

#: Bytes of engine lines that are converted at once: enough to make the cost of a turn small, little enough to let
#: a hundred containers wait for their turn and to keep the process small.
BATCH: Final = 256 * 1024
#: Bytes of files that the engine has removed which a container's backlog may hold: two more files of the default size.
MOST_REMOVED: Final = 80 * 1024 * 1024
#: Seconds between two reports of what is missing in one log.
REPORT_AGAIN: Final = 60.0
_NO_LINES: Final = "what the engine wrote are no lines of a log"


@dataclass(slots=True)
class Totals:
    """What was copied: bytes and lines of the engine, and the bytes at least that are missing."""

    bytes: int = 0
    lines: int = 0
    missing: int = 0

    def add(self, other: Totals) -> None:
        self.bytes += other.bytes
        self.lines += other.lines
        self.missing += other.missing


class Copying:
    """``report`` is told, in words, of whatever is missing in the CRI log. ``totals`` are of this object's life."""

    def __init__(self, source: Path, target: Path, position: Path, report: Callable[[str], None]) -> None:
        self._report = report
        self.totals = Totals()
        #: What has not been reported yet, by the words for it, and before when it is not to be.
        self._unreported: dict[tuple[str, str], int] = {}
        self._silent_until = 0.0
        self._path = target
        self._position_path = position
        self._positions: PositionFile | None = None
        self._source = source
        self._sources = Sources(source)
        self._target = Target(target)
        #: Whether the CRI file may have lines, or a part of one, that are still to be read.
        self._ahead = False

    # -- Where to go on. Whatever fails here can be tried again.

    def _ready(self) -> PositionFile:
        """Make sure that everything is open and at the place up to which the last process came. Raises OSError."""
        if self._positions is not None:
            if not self._target.is_reachable():
                self._target.open()
                self._ahead = False
                self._keep(self._positions)
            if self._ahead:
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
            self._align(None if known else last)
            self._catch_up(positions)
        elif self._target.find(last.target):
            self._catch_up(positions)
        # Another process may have ended between making a file and saying so. Without a loss of power a file that is
        # not as it was left has been emptied or removed by someone: what was in it is not written again.
        if not self._target.is_open() or self._target.replaced():
            self._target.open()
        self._keep(positions)

    def _align(self, dropped: Position | None) -> None:
        """Go on behind what the CRI log has, from the engine's oldest line where it has none of them.

        ``dropped`` is a position that the engine's files do not have any more.
        """
        tail = self._target.open_last()
        self._sources.close()
        self._sources = Sources(self._source)
        self._sources.scan()
        if tail and (place := self._place_behind(tail)):
            self._sources.seek(place)
        elif dropped:
            lost = self._sources.lost_at_least(dropped.source)
            self._report_missing(lost, "the engine dropped them meanwhile", at_least=True)

    def _place_behind(self, tail: bytes) -> Place | None:
        sources = Sources(self._source)
        try:
            sources.scan()
            return align(sources, tail)
        finally:
            sources.close()

    def _catch_up(self, positions: PositionFile) -> None:
        """Pass what the CRI file has already, and complete its last line."""
        try:
            while written := self._target.beyond(2 * BATCH):
                lines = self._read(positions)
                cri, _ = to_cri(lines)
                if not lines or not written.startswith(cri):
                    self._match_lines(lines, written)
                    break
                self._pass(lines, len(cri))
            self._ahead = False
        finally:
            # Also where there was no room for the rest of a line: the next try goes on from here.
            self._keep(positions)

    def _match_lines(self, lines: bytes, written: bytes) -> None:
        """The same line by line: these are the last that the CRI file has, and the last of them may be torn."""
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
        """What is left there is not from these lines: their source is gone, or someone else wrote it.

        Ours begin on a line of their own.
        """
        last = b""
        while more := self._target.beyond(BATCH):
            self._target.accept(len(more))
            last = more
        if not last.endswith(b"\n"):
            self._target.write(b"\n")

    def _read(self, positions: PositionFile) -> bytes:
        """Whole lines of the engine. What is none between two of its files is told, and told once."""
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

    # -- Going on.

    def scan(self, made: int = 0) -> None:
        """Open what the engine has made new, ``made`` files since the last time as is told. Raises OSError."""
        if lost := self._sources.scan(made):
            self._report_missing(lost, "the engine rotates faster than is read", at_least=True)
        # The position is that of the next step: until then, another process finds out what it does not find.
        if lost := self._sources.drop_removed(MOST_REMOVED):
            self._report_missing(lost, "they were written faster than they could be copied")

    def look(self) -> None:
        """The same where nothing tells of what the engine makes. Raises OSError."""
        if self._sources.is_rotated():
            newest, _ = self._sources.end()
            self.scan()
            if not self._sources.has_name(newest):
                self._report_missing(0, "the engine has removed files before they were seen", at_least=True)

    def step(self) -> int:
        """Copy a batch; how many bytes of the engine's were done. Raises OSError: try again later."""
        if self._unreported:
            self._report_sometimes()
        positions = self._ready()
        lines = self._read(positions)
        if not lines:
            return 0
        cri, unreadable = to_cri(lines)
        self._ahead = True
        self._target.write(cri)
        self._ahead = False
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
        """A container that writes too much for hours is not to fill the server's log too."""
        if (now := time.monotonic()) >= self._silent_until:
            self._silent_until = now + REPORT_AGAIN
            self._report_all()

    def _report_all(self) -> None:
        for (at_least, why), count in self._unreported.items():
            self._report(f"{at_least}{count} bytes are missing in {self._path}: {why}")
        self._unreported.clear()

    def reopen(self) -> None:
        """Write to a new file at the path from now on. Raises OSError, and then everything is as before."""
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
        """How many bytes are still to be copied, and the engine's time of the first of these lines, if it is whole."""
        count = self._sources.unread()
        return count, time_of(self._sources.first_unread()) if count else ""

    def let_go(self) -> None:
        """While nothing can be written: do not hold files that the engine has removed."""
        if lost := self._sources.drop_removed():
            self._report_missing(lost, "they could not be written in time")
            with contextlib.suppress(OSError):
                self._keep_source()

    def _keep_source(self) -> None:
        """What was given up is not to be looked for, nor told, by another process or try. Raises OSError."""
        positions = self._positions or PositionFile(self._position_path)
        try:
            if positions.last is not None and not positions.rebooted:
                positions.write(Position(self._sources.place, positions.last.target))
        finally:
            if self._positions is None:
                positions.close()

    def give_up(self) -> None:
        """The container is gone, and no more of it will be copied: what is missing then is reported."""
        if unread := self._sources.unread():
            self._report_missing(unread, "they could not be written before their removal")

    def close(self) -> None:
        self._report_all()
        self._sources.close()
        self._target.close()
        if self._positions is not None:
            self._positions.close()
            self._positions = None


def in_words(error: Exception) -> str:
    """What a person has to know of an error: of the system, what is wrong with which file."""
    if isinstance(error, OSError) and error.errno:
        return f"{error.filename}: {error.strerror}" if error.filename else os.strerror(error.errno)
    return repr(error)
