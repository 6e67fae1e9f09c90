"""What a dump leaves of a disk: the server remembers pods there, and others write there, too."""

from __future__ import annotations

import os
from typing import Final

from dockershim.dumps.problems import Kind, Problem

#: With a tenth of its disk left, a kubelet evicts pods by default. Of a large disk it is more than anybody needs soon.
_PART: Final = 10
_MOST: Final = 10 << 30


def check_room(place: str | os.PathLike[str] | int, size: int, what: str) -> None:
    """Check that the disk of a folder or file has room for ``size`` more bytes; ``what`` is what they are.

    Raises Problem and OSError.
    """
    disk = os.statvfs(place)
    free = disk.f_bavail * disk.f_frsize
    kept = min(disk.f_blocks * disk.f_frsize // _PART, _MOST)
    if free - size < kept and disk.f_blocks:  # one without blocks does not tell its size
        reason = f"{size} bytes do not fit on the disk: {free} are free, and {kept} of them are reserved"
        raise Problem(Kind.FULL, f"{what}: {reason}")
