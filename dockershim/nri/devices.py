"""Finds the host's node of a device by its number. The kernel tells the name that it gave it, so this never waits."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import Final

from dockershim.nri.engine_body import DeviceNumber

_DEVICES: Final = Path("/sys/dev")
_FOLDERS: Final = {"b": "block", "c": "char"}
#: The line of a device's ``uevent`` with its path below /dev (Linux, drivers/base/core.c).
_NAME: Final = "DEVNAME="


def find_nodes(numbers: Iterable[DeviceNumber], *, devices: Path = _DEVICES) -> dict[DeviceNumber, str]:
    """The path of each device that the kernel has a name for: whether a node is there, ``check_host`` sees."""
    found: dict[DeviceNumber, str] = {}
    for number in numbers:
        kind, major, minor = number
        with contextlib.suppress(OSError, UnicodeDecodeError):
            lines = (devices / _FOLDERS[kind] / f"{major}:{minor}" / "uevent").read_text().splitlines()
            for line in lines:
                if line.startswith(_NAME):
                    found[number] = str(PurePosixPath("/dev", line.removeprefix(_NAME)))
    return found
