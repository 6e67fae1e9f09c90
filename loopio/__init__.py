"""What an event loop reads beside what asyncio has: a folder that changes, and a connected socket as a stream.

``folders`` follows a folder with inotify. ``sockets`` makes a stream of a socket, ``streams`` says what a stream is,
and ``holding`` bounds the bytes of streams that wait in memory. Libraries and the server share it; it imports none of
them.
"""

from __future__ import annotations

from loopio.folders import FolderWatch
from loopio.sockets import SocketStream
from loopio.streams import Disconnected, Reader, Stream, Writer

__all__ = ["Disconnected", "FolderWatch", "Reader", "SocketStream", "Stream", "Writer"]
