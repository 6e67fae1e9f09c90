"""The errors of this package. A stream whose other side has gone raises ``loopio.Disconnected``."""

from __future__ import annotations


class StreamingError(Exception):
    """Base of the errors of this package."""


class TooManyWaiting(StreamingError):
    """Too many URLs were issued that no client has opened yet."""


class CommandFailed(StreamingError):
    """A command could not be run, or not be followed to its end. The message is for the client."""


class ForwardFailed(StreamingError):
    """The connection to a port failed. The message is for the client."""
