"""The engine's multiplexed stream: frames of an 8-byte header (stream, 0, 0, 0, length) and that many bytes.

Sans-IO. A long frame is passed on in the pieces in which it arrives, so it is never held in memory as a whole.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from dockershim.errors import EngineFailure

STDIN, STDOUT, STDERR, SYSTEM_ERROR = range(4)

_HEADER = struct.Struct(">BxxxL")


class FrameDecoder:
    """Bytes in, (stream, bytes) pieces out. The pieces are views of the input."""

    def __init__(self) -> None:
        self._header = b""
        self._stream = STDOUT
        self._missing = 0

    @property
    def at_boundary(self) -> bool:
        """Whether the stream may end here. If it ends anywhere else, it was cut off."""
        return not self._header and not self._missing

    def feed(self, data: bytes) -> list[tuple[int, memoryview]]:
        """The pieces in ``data``. Raises EngineFailure for a stream number that does not exist, and for all input after
        that: the frames after such a header cannot be found."""
        return list(self.pieces(data))

    def pieces(self, data: bytes) -> Iterator[tuple[int, memoryview]]:
        """The same, one by one: a read may hold 30,000. All must be taken before the next read is given."""
        data = self._header + data
        view = memoryview(data)
        at, missing = 0, self._missing
        while at < len(data):
            if not missing:
                if len(data) - at < _HEADER.size:
                    break
                self._stream, missing = _HEADER.unpack_from(data, at)
                if self._stream > SYSTEM_ERROR:
                    self._header, self._missing = data[at : at + _HEADER.size], 0
                    raise EngineFailure(f"the engine sent a frame of the unknown stream {self._stream}")
                at += _HEADER.size
            if piece := view[at : at + missing]:
                at += len(piece)
                missing -= len(piece)
                yield self._stream, piece
        self._header, self._missing = data[at:], missing
