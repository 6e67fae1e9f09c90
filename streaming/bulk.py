"""What is moved in bulk goes from socket to socket, where both are sockets."""

from __future__ import annotations

from collections.abc import Mapping

from streaming.pump import Decode
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


async def pump_pieces(source: Reader, decode: Decode, targets: Mapping[int, Writer]) -> list[tuple[int, bytes]]:
    """Move what comes next in a thread, as long as it comes in bulk: what ``decode`` finds for n, to ``targets[n]``.

    For between two reads of ``source``, once all of the last was delivered. Does nothing where it cannot be done, or
    is not worth it. Gives what is still to be delivered, pieces for which there is no target among them. Raises what
    ``decode`` raises; what happens to ``source`` and the targets the next read and write tell.
    """
    streams = {number: target for number, target in targets.items() if isinstance(target, SpdyStream)}
    if streams and len(streams) == len(targets) and isinstance(source, SocketStream):
        return await next(iter(streams.values())).pump_to_streams(source, decode, streams)
    return []


def undivided(data: bytes) -> list[tuple[int, memoryview]]:
    """Decodes bytes that are all of one stream, 0."""
    return [(0, memoryview(data))]
