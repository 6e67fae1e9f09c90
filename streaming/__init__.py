"""A server for the streaming calls of Kubernetes: exec, attach and port-forward, over SPDY/3.1 and WebSocket.

The caller gets a URL for a command or for ports, and gives it to a client, which may open it once. The caller provides
the work for the URL: a coroutine that gets byte streams, or one that connects to a port.
"""

from __future__ import annotations

from loopio import Disconnected, Reader, SocketStream, Stream, Writer
from streaming.errors import CommandFailed, ForwardFailed, StreamingError, TooManyWaiting
from streaming.port_forward import Connect
from streaming.remote_command import Command, CommandStreams, Size, Sizes, Wanted
from streaming.server import Server

__all__ = [
    "Command",
    "CommandFailed",
    "CommandStreams",
    "Connect",
    "Disconnected",
    "ForwardFailed",
    "Reader",
    "Server",
    "Size",
    "Sizes",
    "SocketStream",
    "Stream",
    "StreamingError",
    "TooManyWaiting",
    "Wanted",
    "Writer",
]
