"""Output in bulk: from a process's socket into the SPDY frames of its client, in a thread."""

from __future__ import annotations

import itertools
import operator
import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence

from streaming.sockets import MOST_READ, SENDER_STOPPED
from streaming.spdy import data_header
from streaming.threads import Mover

#: What bytes of a source mean: pieces of numbered streams.
Decode = Callable[[bytes], Sequence[tuple[int, memoryview]]]

#: What a pause between two reads is to gather, bytes: with less, reads and writes cost both ends more than the bytes
#: do; with more, the sender would have to stop.
_WORTHWHILE = 128 * 1024
#: Seconds of such a pause: the first, the shortest and the longest.
_PAUSE = 0.0005
_SHORTEST = 0.0001
_LONGEST = 0.002
#: What one writev takes.
_MOST_VECTORS = 1024


class Pump(Mover):
    """From ``source`` into the SPDY frames of ``sink``: what ``decode`` finds for n goes to the SPDY stream ``ids[n]``.

    It ends also when the sink is full, or a piece is for nobody in ``ids``. Then ``tail`` is to be sent before anything
    else, ``left`` are pieces to be delivered behind it, ``sent`` the bytes of each SPDY stream, and ``failure`` is how
    the source was lost. Raises what ``decode`` raises.
    """

    def __init__(
        self,
        source: socket.socket,
        sink: socket.socket,
        decode: Decode,
        ids: Mapping[int, int],
        is_over: Callable[[], bool],
    ) -> None:
        super().__init__(is_over)
        self._source = source
        self._sink = sink
        self._decode = decode
        self._ids = ids
        self.tail = b""
        self.left: list[tuple[int, bytes]] = []
        self.sent = dict.fromkeys(ids.values(), 0)
        self.failure: OSError | None = None

    def _move(self) -> None:
        pause = _PAUSE
        while self._goes_on():
            try:
                data = os.read(self._source.fileno(), MOST_READ)
            except BlockingIOError:
                size, pause = 0, pause * 2
            except OSError as error:
                self.failure = error
                return
            else:
                # Its end is left for the source's transport to find.
                if not data or not self._deliver(self._decode(data)):
                    return
                self._moved()
                size = len(data)
                pause *= min(max(0.5, _WORTHWHILE / size), 2.0)
            pause = min(max(_SHORTEST, pause), _LONGEST)
            if size < SENDER_STOPPED:
                time.sleep(pause)

    def _deliver(self, pieces: Sequence[tuple[int, memoryview]]) -> bool:
        """Whether all of it was."""
        vectors: list[bytes | memoryview] = []
        at = 0
        for number, run in itertools.groupby(pieces, operator.itemgetter(0)):
            if (stream_id := self._ids.get(number)) is None:
                self.left = [(number, bytes(data)) for number, data in pieces[at:]]
                break
            views = [data for _, data in run]
            size = sum(map(len, views))
            vectors += [data_header(stream_id, size), *views]
            self.sent[stream_id] += size
            at += len(views)
        self.tail = self._write(vectors)
        return not self.tail and not self.left

    def _write(self, vectors: Sequence[bytes | memoryview]) -> bytes:
        """What the sink did not take."""
        if len(vectors) > _MOST_VECTORS:
            vectors = [b"".join(vectors)]
        try:
            taken = os.writev(self._sink.fileno(), vectors)
        except OSError:
            taken = 0  # It is full, or lost: so will the transport find it with the rest.
        return b"" if taken == sum(map(len, vectors)) else b"".join(vectors)[taken:]
