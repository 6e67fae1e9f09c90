"""What metrics need to know about the node: its huge pages, block devices, and the file system of writable layers."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dockershim.common.mountinfo import Mount, mounts
from dockershim.stats.files import read_open
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
        self._huge_pages = HugePageSizes()
        self._devices: dict[str, str] = {}
        self._mounted: dict[str, str] = {}

    def read(self, folder: str) -> NodeReading:
        """``folder`` is the engine's, on whose file system writable layers are."""
        return NodeReading(self._huge_pages.read(), self._file_system(folder))

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


class HugePageSizes:
    """The sizes of huge pages that a node has. The possible sizes are fixed at boot; each reading reads the counts."""

    def __init__(self, folder: Path = _HUGE_PAGES) -> None:
        self._counts = sorted(_open_counts(folder))

    def read(self) -> tuple[str, ...]:
        """The sizes as they are in the names of cgroup files: ``2MB``, ``1GB``."""
        return tuple(size for size, fd in self._counts if int(read_open(fd)) > 0)

    def close(self) -> None:
        """Close the files."""
        for _, fd in self._counts:
            os.close(fd)
        self._counts.clear()


def _open_counts(folder: Path) -> Iterator[tuple[str, int]]:
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            kilobytes = int(entry.name.removeprefix("hugepages-").removesuffix("kB"))
            size = f"{kilobytes >> 20}GB" if kilobytes >= 1 << 20 else f"{kilobytes >> 10}MB"
            yield size, os.open(f"{entry.path}/nr_hugepages", os.O_RDONLY | os.O_CLOEXEC)


def mounted_device(table: Iterable[Mount], number: str) -> str:
    """What is mounted with this device number; empty if nothing is."""
    return next((mount.source for mount in table if mount.device == number), "")
