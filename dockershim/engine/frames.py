"""The engine's multiplexed stream: frames of an 8-byte header (stream, 0, 0, 0, length) and that many bytes.

Sans-IO. A long frame is handed on in the pieces in which it arrives, so memory stays bounded by what is fed.
"""

from __future__ import annotations

import struct

from dockershim.errors import EngineFailure

STDIN, STDOUT, STDERR, SYSTEM_ERROR = range(4)

_HEADER = struct.Struct(">BxxxL")


class FrameDecoder:
    """Bytes in, (stream, bytes) pieces out, which are views of what was fed."""

    def __init__(self) -> None:
        self._header = b""
        self._stream = STDOUT
        self._missing = 0

    @property
    def at_boundary(self) -> bool:
        """Whether the stream may end here; an end anywhere else means that it was cut off."""
        return not self._header and not self._missing

    def feed(self, data: bytes) -> list[tuple[int, memoryview]]:
        """The pieces that ``data`` completes. Raises EngineFailure for a stream number that does not exist, and again
        for whatever is fed after it: nothing behind such a header can be told apart."""
        pieces: list[tuple[int, memoryview]] = []
        view = memoryview(data)
        at = 0
        while at < len(data):
            if self._missing:
                piece = view[at : at + self._missing]
                at += len(piece)
                self._missing -= len(piece)
                pieces.append((self._stream, piece))
                continue
            wanted = _HEADER.size - len(self._header)
            self._header += data[at : at + wanted]
            at += wanted
            if len(self._header) == _HEADER.size:
                stream, length = _HEADER.unpack(self._header)
                if stream > SYSTEM_ERROR:
                    raise EngineFailure(f"the engine sent a frame of stream {stream}, which does not exist")
                self._header, self._stream, self._missing = b"", stream, length
        return pieces
