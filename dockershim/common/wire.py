"""Responses in their wire form, made of parts that were encoded before.

Encoded messages of one type, one behind the other, are their merge (protobuf's encoding, "Last One Wins"): a list of
a hundred items is a hundred lists of one item, joined.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

#: What a message of a streamed list holds at most, unless one item alone is longer. Clients take 4 MiB by default.
CHUNK_BYTES: Final = 256 * 1024


@dataclass(frozen=True, slots=True)
class Encoded:
    """A response that the server sends as it is."""

    wire: bytes

    def SerializeToString(self) -> bytes:  # noqa: N802 - the name that protobuf's messages have for it
        return self.wire


def field(number: int, *parts: bytes) -> bytes:
    """A field that holds a message: the field's number, the length, and the parts of the message in its wire form."""
    return b"".join((_varint(number << 3 | 2), _varint(sum(map(len, parts))), *parts))


def _varint(number: int) -> bytes:
    """A number that is not negative, as protobuf's wire format has it."""
    found = bytearray()
    while number >= 0x80:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)
    return bytes(found)


def in_chunks(parts: Iterable[bytes], size: int = CHUNK_BYTES) -> Iterator[Encoded]:
    """The parts joined to messages of at most ``size`` bytes; none for no parts."""
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
