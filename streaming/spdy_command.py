"""Exec and attach over SPDY: a stream for each channel, named by its ``streamtype``."""

from __future__ import annotations

import asyncio

import background
from loopio import Disconnected
from streaming.remote_command import OPEN_TIMEOUT, CommandStreams, Sizes, Wanted
from streaming.spdy_connection import SpdyConnection, SpdyStream

#: Newest first. A client that names none, as the first ones did, means the oldest.
PROTOCOLS = ("v4.channel.k8s.io", "v3.channel.k8s.io", "v2.channel.k8s.io", "channel.k8s.io")
_WITH_STATUS = {"v4.channel.k8s.io"}
_WITH_RESIZE = {"v4.channel.k8s.io", "v3.channel.k8s.io"}
#: The client sends on these; what it sends on others is dropped.
_READ = {"stdin", "resize"}


class SpdyChannels:
    """Made by ``open``."""

    def __init__(self, connection: SpdyConnection, protocol: str, streams: dict[str, SpdyStream]) -> None:
        self.link = connection
        self.has_status = protocol in _WITH_STATUS
        self._streams = streams
        resize = streams.get("resize")
        self._sizes = Sizes() if resize is not None else None
        self._resizing: asyncio.Task[None] | None = None
        if resize is not None:
            self._resizing = background.start(self._follow(resize), owner="streaming", name="resize")
        self.streams = CommandStreams(streams.get("stdin"), streams.get("stdout"), streams.get("stderr"), self._sizes)

    @classmethod
    async def open(cls, connection: SpdyConnection, protocol: str, wanted: Wanted) -> SpdyChannels:
        """Wait until the client has opened its streams. Raises Disconnected if it does not in time."""
        missing = _types(protocol, wanted)
        found: dict[str, SpdyStream] = {}
        try:
            async with asyncio.timeout(OPEN_TIMEOUT):
                while missing:
                    stream = await connection.accept()
                    if stream is None:
                        raise Disconnected("the client disconnected before it opened its streams")
                    kind = stream.header("streamtype")
                    if kind in missing:
                        missing.remove(kind)
                        found[kind] = stream
                        if kind not in _READ:
                            stream.inbox.discard()
                    else:
                        stream.reset()
        except TimeoutError as error:
            raise Disconnected(f"the client did not open its streams in time: {', '.join(sorted(missing))}") from error
        connection.refuse_streams()
        return cls(connection, protocol, found)

    async def _follow(self, resize: SpdyStream) -> None:
        try:
            while data := await resize.read():
                if self._sizes is not None:
                    self._sizes.feed(data)
        except Disconnected:
            return  # The users of the other streams get the same error.

    async def finish(self, error: bytes) -> None:
        if self._resizing is not None:
            self._resizing.cancel()
        for kind, stream in self._streams.items():
            if kind == "error" and error:
                await stream.write(error)
            if kind in ("stdout", "stderr", "error"):
                await stream.close_write()
        await self.link.close()


def _types(protocol: str, wanted: Wanted) -> set[str]:
    flags = {
        "error": True,
        "stdin": wanted.stdin,
        "stdout": wanted.stdout,
        "stderr": wanted.stderr and not wanted.tty,
        "resize": wanted.tty and protocol in _WITH_RESIZE,
    }
    return {kind for kind, is_wanted in flags.items() if is_wanted}
