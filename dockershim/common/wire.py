"""Responses in wire form, joined from parts that were encoded before.

Encoded messages of one type that follow each other are decoded as their merge (protobuf's encoding, "Last One Wins"):
so a list of a hundred items is the concatenation of a hundred lists of one item.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

#: The most bytes in a message of a streamed list, unless one item is longer. Clients take 4 MiB by default.
CHUNK_BYTES: Final = 256 * 1024


#: The type of a response.
R = TypeVar("R")


@dataclass(slots=True)
class Encoded(Generic[R]):
    """An encoded response of this type."""

    wire: bytes

    def SerializeToString(self) -> bytes:  # noqa: N802 - the name that protobuf's messages have for it
        return self.wire


def field(number: int, *parts: bytes) -> bytes:
    """A field with a message in it: the field's number, the length, and the parts of the encoded message."""
    return b"".join((_varint(number << 3 | 2), _varint(sum(map(len, parts))), *parts))


def _varint(number: int) -> bytes:
    """A non-negative number as a varint of protobuf."""
    found = bytearray()
    while number >= 0x80:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)
    return bytes(found)


def in_chunks(response: type[R], parts: Iterable[bytes], size: int = CHUNK_BYTES) -> Iterator[Encoded[R]]:
    """Join the parts to messages of this type, of at most ``size`` bytes; no messages if there are no parts."""
    held: list[bytes] = []
    length = 0
    for part in parts:
        if held and length + len(part) > size:
            yield Encoded(b"".join(held))
            held, length = [], 0
        held.append(part)
        length += len(part)
    if held:
        yield Encoded(b"".join(held))
