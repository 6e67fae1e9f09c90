"""How many bytes a stream and a connection may hold; ``loopio.holding`` bounds those of all connections."""

from __future__ import annotations

from typing import Final

from streaming.spdy import SESSION_WINDOW, STREAM_WINDOW

#: The most unread bytes of one stream. While a stream has more, its connection is not read. asyncio reads 256 KiB at
#: once: with less than two of these, a connection would be paused and resumed for each read. A SPDY peer gets this as
#: its window: a peer that respects it never causes a pause, in which its own updates of our window would be stuck
#: behind the data.
MOST_BUFFERED: Final = STREAM_WINDOW
#: The most bytes that a connection may hold from its client, and for its client: 10 MiB with one more read of each and
#: the bytes in the transport. They are limited apart, because one direction has to go on when the other cannot: window
#: updates come with a client's data. A client that respects its window stays within its limit, and so is always read.
MOST_INPUT: Final = SESSION_WINDOW
MOST_OUTPUT: Final = 5 * 512 * 1024
