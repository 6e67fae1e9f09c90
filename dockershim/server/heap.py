"""How the C library gives memory back to the kernel."""

from __future__ import annotations

import ctypes
from typing import Final

#: malloc.h of glibc; mallopt(3).
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
#: Answers for some 600 containers are shorter.
_KEPT: Final = 8 << 20


def keep_memory_of_answers() -> None:
    """Let the memory of one long answer serve for the next, up to 8 MiB.

    A list is joined, copied by gRPC, and gone: by default the C library gives such memory back at once, and for each
    answer the kernel has to find and clear its pages again, which takes longer than to fill them. Other C libraries
    than glibc are left as they are.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _KEPT)
        mallopt(_M_TRIM_THRESHOLD, _KEPT)
