"""Lines of the engine's json-file as lines of a CRI log.

An engine line is ``{"log":"text\\n","stream":"stdout","time":"2026-01-02T03:04:05.678901234Z"}``; a text without the
line's end in it is a part of a longer line. A CRI line is ``<time> <stream> <P|F> <text>``.

The same engine lines give the same CRI lines however they are cut into calls: after a crash, what a log file has
beyond its last known position is told by making it again.
"""

from __future__ import annotations

import json
import re
from typing import Final

_HEAD: Final = b'{"log":"'
_END: Final = b'"}\n'
# JSON text has none of these bytes, so they can stand for what must not be mistaken for structure.
_BACKSLASH: Final = b"\x00"
_QUOTE: Final = b"\x01"
_FIELD: Final = b"\x02"
_RESERVED: Final = (_BACKSLASH, _QUOTE, _FIELD)
# What these would become is either a byte that stands for something else, or takes more than one escape.
_NOT_IN_BULK: Final = re.compile(rb"\\n|\\u000[012aA]|\\u[dD]")
_COMMON: Final = (
    (rb"\t", b"\t"),
    (rb"\r", b"\r"),
    (rb"\u003c", b"<"),
    (rb"\u003e", b">"),
    (rb"\u0026", b"&"),
    (rb"\u001b", b"\x1b"),
)
_ESCAPE: Final = re.compile(rb"\\(?:u([0-9a-fA-F]{4})|([bf/]))")
_SHORT: Final = {b"b": b"\b", b"f": b"\f", b"/": b"/"}
_TAGS: Final = {b" F ", b" P "}
_STREAMS: Final = {b"stdout", b"stderr"}
_STREAM_AT_END: Final = re.compile(rb'\\n","stream":"(stdout|stderr)","time":"[^"]*"\}\n\Z')
#: Of an engine line, what is behind its text has at most so many bytes.
_LONGEST_END: Final = 128


def to_cri(lines: bytes) -> tuple[bytes, int]:
    """Whole engine lines as CRI lines, and how many bytes of them are no engine lines and have none.

    A line that was torn, by a disk that was full say, does not take the one with it that was written behind it.
    """
    bulk = _in_bulk(lines)
    if bulk is not None:
        return bulk, 0
    converted, unreadable = [], 0
    for line in lines.removesuffix(b"\n").split(b"\n"):
        cri = _one(line)
        converted.append(cri)
        if not cri:
            unreadable += len(line)
    return b"".join(converted), unreadable


def time_of(line: bytes) -> str:
    """The engine's time of one line, as it stands there: RFC 3339 in UTC. Empty for what is no engine line."""
    _, found, time = line.rpartition(b'"time":"')
    return time.partition(b'"')[0].decode("ascii", "replace") if found else ""


def _in_bulk(lines: bytes) -> bytes | None:
    """All lines at once, by operations on the whole text: 250,000 lines a second leave no time for a look at each.

    None where any of the lines is not as engines usually write them.
    """
    if not (lines.startswith(_HEAD) and lines.endswith(_END)) or any(byte in lines for byte in _RESERVED):
        return None
    text, count = lines, lines.count(b"\n")
    escaped = lines.count(b"\\") != count
    if escaped:
        text = text.replace(rb"\\", _BACKSLASH).replace(rb"\"", _QUOTE)
    # From here on a quote is structure.
    joined = _of_one_stream(text, count) or _of_both_streams(text, count)
    if joined is None or b'"' in joined:
        return None
    if b"\\" in joined:
        unescaped = _unescape(joined) if escaped else None
        if unescaped is None:
            return None
        joined = unescaped
    return joined.replace(_QUOTE, b'"').replace(_BACKSLASH, b"\\") if escaped else joined


def _of_one_stream(text: bytes, count: int) -> bytes | None:
    """Most batches: whole lines of one stream only. Two fields a line, the text and the time, change their places."""
    stream = _STREAM_AT_END.search(text, len(text) - _LONGEST_END)
    if stream is None:
        return None
    text = text.replace(b'\\n","stream":"%b","time":"' % stream[1], b"\n" + _FIELD)
    tag = b" %b F " % stream[1]
    fields = (text[len(_HEAD) : -len(_END)].replace(b'"}\n{"log":"', tag + _FIELD) + tag).split(_FIELD)
    if len(fields) != 2 * count:
        return None
    fields[0::2], fields[1::2] = fields[1::2], fields[0::2]
    return b"".join(fields)


def _of_both_streams(text: bytes, count: int) -> bytes | None:
    """Lines of any stream, and parts of lines: four fields a line, which come in the opposite order."""
    text = text.replace(rb'\n","stream":"', b"\n\x02 F \x02")
    if text.count(_FIELD) != 2 * count:
        text = text.replace(b'","stream":"', b"\n\x02 P \x02")
    text = text.replace(b'","time":"', _FIELD).replace(b'"}\n{"log":"', b" \x02")
    fields = (text[len(_HEAD) : -len(_END)] + b" ").split(_FIELD)
    if len(fields) != 4 * count or not (_TAGS.issuperset(fields[1::4]) and _STREAMS.issuperset(fields[2::4])):
        return None
    fields[0::4], fields[1::4], fields[2::4], fields[3::4] = fields[3::4], fields[2::4], fields[1::4], fields[0::4]
    return b"".join(fields)


def _unescape(text: bytes) -> bytes | None:
    if _NOT_IN_BULK.search(text):
        return None
    for escape, meant in _COMMON:
        text = text.replace(escape, meant)
    if b"\\" in text:
        text = _ESCAPE.sub(_meant, text)
    return None if b"\\" in text else text


def _meant(escape: re.Match[bytes]) -> bytes:
    return chr(int(escape[1], 16)).encode() if escape[1] else _SHORT[escape[2]]


def _one(line: bytes) -> bytes:
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
