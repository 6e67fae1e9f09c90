"""Converts lines of the engine's json-file to lines of a CRI log.

An engine line is ``{"log":"text\\n","stream":"stdout","time":"2026-01-02T03:04:05.678901234Z"}``. If its text does not
end with a newline, it is a part of a longer line. A CRI line is ``<time> <stream> <P|F> <text>``.

The same engine lines give the same CRI lines, no matter how they are split into calls. So after a crash, the lines in
a CRI log beyond its last known position are recognized by converting the engine's lines again.
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
    """Convert whole engine lines to CRI lines. Also returns how many bytes are not engine lines and are left out.

    If a line was torn, for example by a full disk, the line after it is still converted.
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
    """The engine's time of one line, as it is written there: RFC 3339 in UTC. Empty if it is not an engine line."""
    _, found, time = line.rpartition(b'"time":"')
    return time.partition(b'"')[0].decode("ascii", "replace") if found else ""


def _in_bulk(lines: bytes) -> bytes | None:
    """Convert all lines at once, as fast as containers can write, whatever their bytes. None if a line is damaged."""
    count = lines.count(b"\n")
    try:
        entries = _DECODE(lines)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    # Each line must have one entry. If a line has two, only the last one is surely whole.
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
    """Convert one engine line, without its newline, to CRI lines; empty if it is not an engine line."""
    # Anything before _HEAD is a torn line: inside a JSON string these quotes would have backslashes.
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
