"""The errors of this package."""

from __future__ import annotations


class StreamingError(Exception):
    """Base of the errors of this package."""


class TooManyWaiting(StreamingError):
    """Too many URLs were issued that no client has opened yet."""


class Disconnected(StreamingError):
    """The client has gone, or has reset the stream: no more bytes come from it, and none reach it."""


class CommandFailed(StreamingError):
    """A command could not be run, or not be followed to its end. The message is for the client."""


class ForwardFailed(StreamingError):
    """The connection to a port failed. The message is for the client."""
