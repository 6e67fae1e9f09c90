"""Shortens long JSON of the engine piece by piece, before it is parsed. Sans-IO.

The author of an image chooses how many labels and variables it has, and how long they are, and the engine repeats them
in each answer about the image and its containers. So an answer has no length that is surely enough. What grows are flat
objects and arrays: their entries are strings, numbers, or empty. The machine drops entries there, and nothing else:

* an entry that is longer than a text may be;
* every entry after those that fill an object or array: it is *full* then.

Labels of Kubernetes and of dockershim (``OURS``) have room of their own, so that no label of an image displaces them,
and those by which a container is managed (``KEPT_LABELS``) stay in any case.

A regular expression takes a run of entries at once, so that this reads some 200 MB of small entries in a second, and a
search takes the rest of a long text, with some GB in a second. What comes out does not depend on how the bytes come in.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from dockershim.translate.labels import EXTRA_LABEL, KEPT_LABELS


class Malformed(ValueError):
    """The bytes are not the JSON of an object, of an array, or of an array of objects, as it should be."""


@dataclass(frozen=True, slots=True)
class Room:
    """Bytes that the entries of one object or array may have, and those of OURS beside them; bytes of one entry."""

    entries: int
    entry: int


#: For an answer of which all is used. A request has at most 1 MiB of labels, and so has the image it is created from.
WHOLE: Final = Room(2 << 20, 1 << 20)
#: For a list, of which only fields with short texts are used.
LISTED: Final = Room(64 << 10, 16 << 10)

#: Bytes of EXTRA_LABEL: it has the names of a request's labels, quoted twice; and of any other of KEPT_LABELS.
_LONGEST_EXTRA: Final = 4 << 20
_LONGEST_KEPT: Final = 64 << 10
#: No answer of an engine is deeper than 12.
_DEEPEST: Final = 64
#: Bytes of a document after which arrays get no more objects. Only volumes of an image make many of those.
_LONGEST_LEFT: Final = 16 << 20

#: Bytes of what is neither a text nor empty.
_LONGEST_NUMBER: Final = 64

_SPACE: Final = rb"[ \t\r\n]*+"
_INSIDE: Final = rb'[^"\\]*+(?:\\.[^"\\]*+)*+'
_STRING: Final = rb'"' + _INSIDE + rb'"'
_FLAT: Final = rb"(?:" + _STRING + rb"|\{" + _SPACE + rb"\}|\[" + _SPACE + rb"\]|[-+.0-9a-zA-Z]++)"
_NAME: Final = _STRING + _SPACE + rb":" + _SPACE
_OURS: Final = rb'"(?:annotation\.|io\.dockershim\.|io\.kubernetes\.)'
_KEPT: Final = rb'"(?:' + b"|".join(re.escape(key.encode()) for key in sorted(KEPT_LABELS)) + rb')"'
_ENTRY: Final = _STRING + rb":" + _FLAT + rb","
_ENDS: Final = rb"(?=" + _SPACE + rb"[,}\]])"
_BEGINS: Final = _SPACE + rb"(?=[^ \t\r\n}\]])"


def _tokens(*alternatives: bytes) -> re.Pattern[bytes]:
    # The last alternative is empty: what follows is not all there yet.
    return re.compile(rb"[ \t\r\n,]*+(?:" + b"|".join((*alternatives, rb"(?P<rest>)")) + rb")", re.DOTALL)


_IN_OBJECT: Final = _tokens(
    rb'(?P<others>(?:(?!""|' + _OURS + rb")" + _ENTRY + rb")++)",
    rb"(?P<ours>(?:(?=" + _OURS + rb")(?!" + _KEPT + rb")" + _ENTRY + rb")++)",
    rb"(?P<entry>" + _NAME + _FLAT + rb")" + _ENDS,
    rb"(?P<open>" + _NAME + rb"[\[{])" + _BEGINS,
    rb"(?P<close>\})",
)
_IN_ARRAY: Final = _tokens(
    rb"(?P<others>(?:" + _FLAT + rb",)++)",
    rb"(?P<entry>" + _FLAT + rb")" + _ENDS,
    rb"(?P<open>[\[{])" + _BEGINS,
    rb"(?P<close>\])",
)
_AT_ROOT: Final = _tokens(rb"(?P<open>[\[{])")

#: The array whose objects are documents.
_AROUND: Final = _tokens(rb"(?P<open>\{)", rb"(?P<close>\])")

_ONE_IN_OBJECT: Final = re.compile(_ENTRY, re.DOTALL)
_ONE_IN_ARRAY: Final = re.compile(_FLAT + rb",", re.DOTALL)
_IS_OURS: Final = re.compile(_OURS)
_IS_KEPT: Final = re.compile(_KEPT)
_IS_NAMED: Final = re.compile(_NAME, re.DOTALL)
_REST_OF_STRING: Final = re.compile(_INSIDE, re.DOTALL)

_EXTRA: Final = f'"{EXTRA_LABEL}"'.encode()
_BRACE, _QUOTE = b'{"'
#: Whose an entry is.
_OTHER, _OUR_OWN = 0, 1


class _Part(Enum):
    NAME = auto()
    TEXT = auto()


class _Collection:
    """An object or an array that has begun. ``used`` and ``full`` are of the other entries, then of OURS.

    ``muted``: nothing of it is given back.
    """

    __slots__ = ("closing", "full", "is_empty", "muted", "one", "tokens", "used")

    def __init__(self, opening: int, *, muted: bool) -> None:
        in_object = opening == _BRACE
        self.closing = b"}" if in_object else b"]"
        self.tokens = _IN_OBJECT if in_object else _IN_ARRAY
        self.one = _ONE_IN_OBJECT if in_object else _ONE_IN_ARRAY
        self.muted = muted
        self.used = [0, 0]
        self.full = [muted, muted]
        self.is_empty = True


class Shortener:
    """Takes the bytes of an object or an array, and gives it back shorter; with ``split``, each object of an array.

    ``left_out`` is how many bytes it has dropped. Its memory is bounded: some MiB for each document.
    """

    def __init__(self, room: Room, *, split: bool = False) -> None:
        self.left_out = 0
        self._room = room
        #: How many collections are open around a document.
        self._around = 1 if split else 0
        #: What is not taken yet, and how far it is while taking.
        self._data = b""
        self._at = 0
        self._open: list[_Collection] = []
        self._has_begun = False
        self._out: list[bytes] = []
        self._length = 0
        self._done: list[bytes] = []
        #: What the string is whose rest is dropped.
        self._dropping: _Part | None = None

    def feed(self, data: bytes) -> list[bytes]:
        """The documents that ``data`` completes. Raises Malformed for what is not JSON."""
        self._data += data
        while self._step():
            pass
        self._data, self._at = self._data[self._at :], 0
        done, self._done = self._done, []
        return done

    def finish(self) -> None:
        """To be called after the last byte. Raises Malformed if it comes too early."""
        if self._open or not self._has_begun or self._data:
            raise Malformed("it is truncated")

    def _step(self) -> bool:
        """Take what comes next; False if that is not all there yet."""
        if self._dropping is not None:
            return self._drop()
        found = (self._open[-1].tokens if self._open else _AT_ROOT).match(self._data, self._at)
        assert found is not None, "one alternative is empty"
        self._at = found.end()
        kind = found.lastgroup
        if kind == "rest":
            return self._begin_to_drop()
        if kind == "others" or kind == "ours":
            self._take_run(found[kind], _OUR_OWN if kind == "ours" else _OTHER)
        elif kind == "entry":
            self._take(found["entry"])
        elif kind == "open":
            self._begin(found["open"])
        else:
            self._end()
        return True

    def _begin(self, text: bytes) -> None:
        if self._has_begun and not self._open:
            raise Malformed("there is data after its end")
        around = self._open[-1] if self._open else None
        muted = around is not None and (around.muted or (around.closing == b"]" and self._length > _LONGEST_LEFT))
        if around is not None and not muted:
            self._give(around, text)
        elif around is None and not self._around:
            self._out.append(text)
        elif muted:
            self.left_out += len(text)
        elif text != b"[":
            raise Malformed("it must be an array")
        self._has_begun = True
        begun = _Collection(text[-1], muted=muted)
        if len(self._open) < self._around:
            begun.tokens = _AROUND
        self._open.append(begun)
        if len(self._open) > _DEEPEST:
            raise Malformed("it is nested too deeply")

    def _end(self) -> None:
        ended = self._open.pop()
        if not ended.muted and len(self._open) >= self._around:
            self._out.append(ended.closing)
        if len(self._open) == self._around and self._out:
            self._done.append(b"".join(self._out))
            self._out, self._length = [], 0

    def _take_run(self, run: bytes, whose: int) -> None:
        """Take entries that each end with a comma."""
        top = self._open[-1]
        if top.full[whose]:
            self.left_out += len(run)
        elif len(run) <= self._room.entry and top.used[whose] + len(run) <= self._room.entries:
            top.used[whose] += len(run)
            self._give(top, run[:-1])
        else:
            for one in top.one.finditer(run):
                self._offer(top, one[0][:-1], whose)

    def _take(self, entry: bytes) -> None:
        top = self._open[-1]
        if top.closing == b"]":
            self._offer(top, entry, _OTHER)
        elif entry.startswith(b'""'):
            # Its name was dropped, or has always been empty, which nothing of the engine's is.
            self.left_out += len(entry)
        elif _IS_KEPT.match(entry) and not top.muted and len(entry) <= _longest_kept(entry):
            self._give(top, entry)
        else:
            self._offer(top, entry, _OUR_OWN if _IS_OURS.match(entry) else _OTHER)

    def _offer(self, top: _Collection, entry: bytes, whose: int) -> None:
        """Take the entry if there is room."""
        length = len(entry) + 1
        if length <= self._room.entry and top.used[whose] + length > self._room.entries:
            top.full[whose] = True
        if top.full[whose] or length > self._room.entry:
            self.left_out += length
        else:
            top.used[whose] += length
            self._give(top, entry)

    def _give(self, top: _Collection, text: bytes) -> None:
        if not top.is_empty and len(self._open) > self._around:
            self._out.append(b",")
        top.is_empty = False
        self._out.append(text)
        self._length += len(text)

    def _begin_to_drop(self) -> bool:
        """Look at what is not all there; True if it is too long already, and so is dropped."""
        length = len(self._data) - self._at
        if length <= self._room.entry + _LONGEST_NUMBER:
            return False
        in_object = bool(self._open) and self._open[-1].closing == b"}"
        named = _IS_NAMED.match(self._data, self._at) if in_object else None
        if named is not None and _IS_KEPT.match(named[0]) and length <= _longest_kept(named[0]):
            return False
        is_text = not in_object or (named is not None and self._data.startswith(b'"', named.end()))
        begin = named.end() if named is not None and is_text else self._at
        if not self._open or self._data[begin] != _QUOTE or (not is_text and self._data.startswith(b'""', begin)):
            raise Malformed("a long value in it must be a string")
        self._dropping = _Part.TEXT if is_text else _Part.NAME
        self.left_out += begin + 1 - self._at
        self._at = begin + 1
        return True

    def _drop(self) -> bool:
        """Drop what there is of a string; True if its end is there."""
        data, begin = self._data, self._at
        end = data.find(b'"', begin)
        if end < 0:
            end = len(data)
        if data.find(b"\\", begin, end) >= 0:
            found = _REST_OF_STRING.match(data, begin)
            assert found is not None, "it matches nothing, too"
            end = found.end()
        self.left_out += end - begin
        self._at = end
        if end == len(data) or data[end] != _QUOTE:
            return False
        self._at += 1
        if self._dropping is _Part.NAME:
            # What has this name is dropped like any entry.
            self._data, self._at = b'""' + data[self._at :], 0
        self._dropping = None
        return True


def _longest_kept(entry: bytes) -> int:
    return _LONGEST_EXTRA if entry.startswith(_EXTRA) else _LONGEST_KEPT
