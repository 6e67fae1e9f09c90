"""Finds where to continue when a position cannot be trusted, by the last lines of the CRI log itself.

After a loss of power the engine's file, the CRI log and the position may each have lost a different part of their end.
Lines have their time to the nanosecond, so the last line of the CRI log can be found in the engine's file.
"""

from __future__ import annotations

import re
from typing import Final

from dockershim.logs.lines import to_cri
from dockershim.logs.position import Place
from dockershim.logs.source import Sources

_CRI_LINE: Final = re.compile(
    rb"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,9})?)Z (?:stdout|stderr) [FP] .*\n", re.DOTALL
)
_ENGINE_TIME: Final = re.compile(rb'"time":"([^"]*)Z"\}\n\Z')
_BATCH: Final = 256 * 1024


def align(sources: Sources, tail: bytes) -> Place | None:
    """The place in ``sources`` after the lines that the CRI log has. This may read ``sources`` to their end.

    ``tail`` is the log's last whole lines. If the engine has lost the last of them, the place is after the engine's
    lines that are not newer. None if all of the engine's lines are newer, or if ``tail`` does not end with a CRI line.
    Raises OSError.
    """
    last = tail[tail.rfind(b"\n", 0, -1) + 1 :]
    found = _CRI_LINE.fullmatch(last)
    if found is None:
        return None
    time, copies = found[1], _each(tail).count(last)
    older: Place | None = None
    while lines := sources.read(_BATCH)[0]:
        if time + b'Z"}' not in lines and _is_not_newer(lines, time):
            sources.advance(lines)
            older = sources.place
            continue
        for line in _each(lines):
            sources.advance(line)
            # The parts of one long line have the same time, and may have the same text.
            copies -= to_cri(line)[0] == last
            if not copies:
                return sources.place
            if _is_not_newer(line, time):
                older = sources.place
    return older


def _each(lines: bytes) -> list[bytes]:
    return [line + b"\n" for line in lines.removesuffix(b"\n").split(b"\n")]


def _is_not_newer(lines: bytes, time: bytes) -> bool:
    """Whether the last of the engine's lines was not written after ``time``. Both times are UTC without the zone.

    A fraction has no zeros at its end, so the texts sort as the times do.
    """
    found = _ENGINE_TIME.search(lines, len(lines) - 64)
    return found is not None and found[1] <= time
