"""Where to go on when positions cannot be trusted: told by what the CRI log itself ends with.

After a loss of power each file may have lost its end, and they may have lost more or less than the position. A
container's lines have their time to the nanosecond, so the last one of the CRI log is found in the engine's.
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
    """The place in ``sources``, which are read to their end for that, behind what a CRI log has.

    ``tail`` is the log's last whole lines. Where the engine has lost the last of them, the place is behind those that
    are not newer. None where there is no such place: all of the engine's lines are newer, or ``tail`` has no CRI line.
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
            # The parts of one long line have one time, and may have one text.
            copies -= to_cri(line)[0] == last
            if not copies:
                return sources.place
            if _is_not_newer(line, time):
                older = sources.place
    return older


def _each(lines: bytes) -> list[bytes]:
    return [line + b"\n" for line in lines.removesuffix(b"\n").split(b"\n")]


def _is_not_newer(lines: bytes, time: bytes) -> bool:
    """Whether the last of the engine's lines was not written after ``time``; both are without the zone, which is UTC.

    A fraction has no zeros at its end, so these texts are in the order of the times that they mean.
    """
    found = _ENGINE_TIME.search(lines, len(lines) - 64)
    return found is not None and found[1] <= time
