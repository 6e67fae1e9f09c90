"""Checks that several requests share. Each raises InvalidArgument (or Unsupported) naming the field."""

from __future__ import annotations

import re
from typing import Any

from google.protobuf.message import Message

from dockershim.errors import InvalidArgument, Unsupported

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def require(value: Any, field: str) -> None:
    """The field must have a value."""
    if not value:
        raise InvalidArgument(f"{field}: must not be empty")


def reject(value: Any, field: str, why: str) -> None:
    """A field that is not supported must have its default value."""
    if value:
        raise Unsupported(f"{field}: {why}")


def check_text(value: str, field: str) -> None:
    """No control characters: such a value could break the line of a file, or be invisible in a log."""
    if _CONTROL.search(value):
        raise InvalidArgument(f"{field}: control characters are not allowed")


def check_enums(message: Message, field: str) -> None:
    """Every enum field of the message, at any depth, must have a value of the API."""
    for descriptor, value in message.ListFields():
        name = f"{field}.{descriptor.name}"
        values = value if descriptor.is_repeated else [value]
        if descriptor.enum_type is not None:
            for number in values:
                if number not in descriptor.enum_type.values_by_number:
                    raise InvalidArgument(f"{name}: {number} is not a valid {descriptor.enum_type.name}")
        elif descriptor.message_type is not None and not descriptor.message_type.GetOptions().map_entry:
            for item in values:
                check_enums(item, name)
