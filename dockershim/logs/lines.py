"""Lines of the engine's json-file as lines of a CRI log.

An engine line is ``{"log":"text\\n","stream":"stdout","time":"2026-01-02T03:04:05.678901234Z"}``; a text without the
line's end in it is a part of a longer line. A CRI line is ``<time> <stream> <P|F> <text>``.

The same engine lines give the same CRI lines however they are cut into calls: after a crash, what a log file has
beyond its last known position is told by making it again.
"""

from __future__ import annotations

import json
from typing import Final, Literal

import msgspec

_HEAD: Final = b'{"log":"'


class _Line(msgspec.Struct, gc=False):
    stream: Literal["stdout", "stderr"]
    time: str
    log: str = ""


_DECODE: Final = msgspec.json.Decoder(_Line).decode_lines


def to_cri(lines: bytes) -> tuple[bytes, int]:
    """Whole engine lines as CRI lines, and how many bytes of them are no engine lines and have none.

    A line that was torn, by a disk that was full say, does not take the one with it that was written behind it.
    """
    whole = _in_bulk(lines)
    if whole is not None:
        return whole, 0
    converted, unreadable = [], 0
    for line in lines.removesuffix(b"\n").split(b"\n"):
        cri = _in_bulk(line + b"\n") or _patiently(line)
        converted.append(cri)
        if not cri:
            unreadable += len(line)
    return b"".join(converted), unreadable


def time_of(line: bytes) -> str:
    """The engine's time of one line, as it stands there: RFC 3339 in UTC. Empty for what is no engine line."""
    _, found, time = line.rpartition(b'"time":"')
    return time.partition(b'"')[0].decode("ascii", "replace") if found else ""


def _in_bulk(lines: bytes) -> bytes | None:
    """All lines at once, as fast as containers can write, whatever bytes they write. None where any line is damaged."""
    count = lines.count(b"\n")
    try:
        entries = _DECODE(lines)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    # No line without an entry, and none with two: of such a line only the last one is whole for sure.
    if not len(entries) == count == lines.count(b"}\n"):
        return None
    cri = "".join(
        [
            f"{entry.time} {entry.stream} F {text}"
            if (text := entry.log)[-1:] == "\n"
            else f"{entry.time} {entry.stream} P {text}\n"
            for entry in entries
        ]
    )
    return cri.encode() if cri.count("\n") == count else None


def _patiently(line: bytes) -> bytes:
    """One engine line, without its end, as CRI lines; empty where it is none."""
    # Whatever stands before was torn off: in JSON text these bytes have backslashes between them.
    start = line.rfind(_HEAD)
    try:
        entry = json.loads(line[max(start, 0) :].decode("utf-8", "surrogateescape"), strict=False)
        text, stream, time = entry.get("log", ""), entry["stream"], entry["time"]
        head = f"{time} {stream}".encode()
        content = text.encode("utf-8", "surrogateescape")
    except (ValueError, KeyError, AttributeError):
        return b""
    if stream not in ("stdout", "stderr"):
        return b""
    *whole, last = content.split(b"\n")
    cri = b"".join(b"%b F %b\n" % (head, part) for part in whole)
    return cri + b"%b P %b\n" % (head, last) if last or not whole else cri
