"""What can go wrong between a server and a streaming client."""

from __future__ import annotations


class StreamingError(Exception):
    """Base of the errors of this package."""


class TooManyWaiting(StreamingError):
    """As many tokens as may wait for their client do."""


class Disconnected(StreamingError):
    """The client has gone, or has reset the stream: nothing more comes from there, and nothing more arrives."""


class CommandFailed(StreamingError):
    """A command could not be run or followed to its end; the message is for the client."""


class ForwardFailed(StreamingError):
    """A port could not be connected to; the message is for the client."""
