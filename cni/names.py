"""Checks of names (SPEC.md, section 1 "Configuration format" and section 2 "Parameters").

The names become parts of file names and environment variables, so these checks also keep a path inside its folder.
Each function raises ``ValueError`` with the reason.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

_NAME: Final = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.\-]*")
# IFNAMSIZ, less the closing zero.
_INTERFACE_LENGTH: Final = 15


def check_container_id(container_id: str) -> None:
    _check_name("container id", container_id)


def check_network_name(name: str) -> None:
    _check_name("network name", name)


def check_interface_name(name: str) -> None:
    """The kernel's rules: ``dev_valid_name`` in net/core/dev.c."""
    if not name or len(name.encode(errors="replace")) > _INTERFACE_LENGTH:
        raise ValueError(f"interface name {name!r:.80} must have 1 to {_INTERFACE_LENGTH} bytes")
    if name in (".", "..") or any(char in "/:\0" or char.isspace() for char in name):
        raise ValueError(f"interface name {name!r} must not be '.' or '..', or contain '/', ':' or white space")


def check_plugin_type(name: str) -> None:
    """A plugin's type is the name of its file, without a path."""
    if not name or name in (".", "..") or any(char in "/\\\0" for char in name):
        raise ValueError(f"plugin type {name!r:.80} must be a file name")


def check_environment(what: str, value: str) -> None:
    if "\0" in value:
        raise ValueError(f"{what} contains a zero byte")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{what} is not valid Unicode") from None


def check_arguments(arguments: Iterable[tuple[str, str]]) -> None:
    """CNI_ARGS has no quoting, so a ';' in a value would start another argument."""
    for key, value in arguments:
        if not key or any(char in ";=" for char in key) or ";" in value:
            raise ValueError(f"CNI_ARGS: {key!r:.80}={value!r:.80} must not contain ';', nor '=' in its name")
        check_environment("argument", key + value)


def _check_name(what: str, name: str) -> None:
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"{what} {name!r:.80} must begin with a letter or digit and contain only letters, digits, '_', '.' and '-'"
        )
