"""Exec and attach over WebSocket: channels 0 to 4 of one connection."""

from __future__ import annotations

from streaming.remote_command import CommandStreams, Sizes, Wanted
from streaming.websocket import ChannelWriter, WebSocketLink

PROTOCOLS = (
    "v5.channel.k8s.io",
    "v4.channel.k8s.io",
    "v4.base64.channel.k8s.io",
    "v3.channel.k8s.io",
    "v2.channel.k8s.io",
    "channel.k8s.io",
    "base64.channel.k8s.io",
)
CLOSABLE = {"v5.channel.k8s.io"}
BASE64 = {"v4.base64.channel.k8s.io", "base64.channel.k8s.io"}
_WITH_STATUS = {"v5.channel.k8s.io", "v4.channel.k8s.io", "v4.base64.channel.k8s.io"}
_STDIN, _STDOUT, _STDERR, _ERROR, _RESIZE = range(5)


class WebSocketChannels:
    """Made by ``open``."""

    def __init__(self, link: WebSocketLink, protocol: str, wanted: Wanted) -> None:
        self.link = link
        self.has_status = protocol in _WITH_STATUS
        sizes = Sizes() if wanted.tty else None
        inboxes = link.receive([_STDIN] if wanted.stdin else [], {_RESIZE: sizes.feed} if sizes is not None else {})
        self.streams = CommandStreams(
            inboxes.get(_STDIN),
            ChannelWriter(link, _STDOUT) if wanted.stdout else None,
            ChannelWriter(link, _STDERR) if wanted.stderr and not wanted.tty else None,
            sizes,
        )

    @classmethod
    async def open(cls, link: WebSocketLink, protocol: str, wanted: Wanted) -> WebSocketChannels:
        """Begin with an empty message, which some clients wait for, to show that it works. Raises Disconnected."""
        await link.send(_STDOUT if wanted.stdout else _STDERR if wanted.stderr else _ERROR, b"")
        return cls(link, protocol, wanted)

    async def finish(self, error: bytes) -> None:
        if error:
            await self.link.send(_ERROR, error)
        await self.link.close()
