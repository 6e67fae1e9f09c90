"""What metrics need to know about the node: its huge pages, block devices, and the file system of writable layers."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dockershim.common.mountinfo import Mount, mounts
from dockershim.stats.files import read_whole
from dockershim.stats.metrics import FileSystem

_BLOCK_DEVICES: Final = Path("/sys/dev/block")
_HUGE_PAGES: Final = Path("/sys/kernel/mm/hugepages")


@dataclass(frozen=True, slots=True)
class NodeReading:
    """Sizes of huge pages, and the file system of writable layers; None if this process does not see it."""

    huge_page_sizes: tuple[str, ...]
    file_system: FileSystem | None


class Machine:
    """The node. It keeps between readings what does not change while the node runs."""

    def __init__(self) -> None:
        self._devices: dict[str, str] = {}
        self._mounted: dict[str, str] = {}

    def read(self, folder: str) -> NodeReading:
        """``folder`` is the engine's, on whose file system writable layers are."""
        return NodeReading(huge_page_sizes(), self._file_system(folder))

    def device_name(self, number: str) -> str:
        """The name of a block device, as ``/dev/sda`` for ``8:0``."""
        known = self._devices.get(number)
        if known is None:
            try:
                known = f"/dev/{(_BLOCK_DEVICES / number).readlink().name}"
            except OSError:
                known = number
            self._devices[number] = known
        return known

    def _file_system(self, folder: str) -> FileSystem | None:
        """The file system of a folder; None if this process does not see it."""
        try:
            # A Path costs more than the call.
            found, device = os.statvfs(folder), os.stat(folder).st_dev  # noqa: PTH116
        except OSError:
            return None
        return FileSystem(
            device=self._mounted_device(f"{os.major(device)}:{os.minor(device)}"),
            size=found.f_blocks * found.f_frsize,
            inodes=found.f_files,
            inodes_free=found.f_ffree,
        )

    def _mounted_device(self, number: str) -> str:
        """What is mounted with this device number. Looked up once, as a node has hundreds of mounts."""
        known = self._mounted.get(number)
        if known is None:
            known = self._mounted[number] = mounted_device(mounts(), number) or self.device_name(number)
        return known


def huge_page_sizes(folder: Path = _HUGE_PAGES) -> tuple[str, ...]:
    """The sizes of the huge pages that there are now, as they are in the names of cgroup files: ``2MB``, ``1GB``."""
    try:
        names = sorted(os.listdir(folder))  # noqa: PTH208 - a Path costs more than the call
    except FileNotFoundError:
        return ()
    found = []
    for name in names:
        if int(read_whole(f"{folder}/{name}/nr_hugepages")) > 0:
            kilobytes = int(name.removeprefix("hugepages-").removesuffix("kB"))
            found.append(f"{kilobytes >> 20}GB" if kilobytes >= 1 << 20 else f"{kilobytes >> 10}MB")
    return tuple(found)


def mounted_device(table: Iterable[Mount], number: str) -> str:
    """What is mounted with this device number; empty if nothing is."""
    return next((mount.source for mount in table if mount.device == number), "")
