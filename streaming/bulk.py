"""What is moved in bulk goes from socket to socket, where both are sockets."""

from __future__ import annotations

from streaming.sockets import SocketStream
from streaming.spdy_connection import SpdyStream
from streaming.streams import Reader, Writer


async def splice(source: Reader, target: Writer) -> None:
    """Move what comes next without reading it, as long as it comes faster than it could be read.

    For between two reads of ``source``, once ``target`` was given all of the last. Does nothing where it cannot be
    done, or is not worth it. Raises Disconnected when ``target`` fails; what happens to ``source`` the next read tells.
    """
    if isinstance(source, SpdyStream) and isinstance(target, SocketStream):
        await source.splice(target)
