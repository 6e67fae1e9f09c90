"""The mounts that a process sees, from /proc/<pid>/mountinfo (proc_pid_mountinfo(5)).

Tenants write into it: the root of a bind mount is a folder that the owner of a volume named, and users of a node choose
mount points and sources of their own file systems. The kernel escapes only space, tab, newline, backslash and ``#``.
So rows end at a newline and fields at one space, and at nothing else that Python would also split at.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

PROC: Final = Path("/proc")
_ESCAPED: Final = re.compile(rb"\\([0-3][0-7]{2})")
#: The first of the optional fields, whose end is a field of its own.
_OPTIONAL: Final = 6
_END_OF_OPTIONAL: Final = b"-"


@dataclass(frozen=True, slots=True)
class Mount:
    """A row. All texts are unescaped and decoded as names of files are (``os.fsdecode``).

    ``device`` is ``major:minor`` of the file system, ``root`` the folder of it that is seen at ``point``. ``tags`` are
    the optional fields, as ``shared:7``. ``kind``, ``source`` and ``options`` are the file system's own.
    """

    number: int
    device: str
    root: str
    point: str
    tags: tuple[str, ...]
    kind: str
    source: str
    options: tuple[str, ...]

    @property
    def is_shared(self) -> bool:
        """Whether mounts made below it reach other mounts of the same folder."""
        return any(tag.startswith("shared:") for tag in self.tags)


def mounts(pid: int | str = "self", proc: Path = PROC) -> Iterator[Mount]:
    """The mounts of a process's namespace, as far as its root shows them; of two at one point the later is on top.

    Raises OSError, also in the middle: a process may end.
    """
    # Line by line, as a container can have as many mounts as the kernel lets it.
    with (proc / str(pid) / "mountinfo").open("rb") as rows:
        yield from parse(rows)


def parse(rows: Iterable[bytes]) -> Iterator[Mount]:
    """The mounts of these rows. What is no row of this form is left out."""
    for row in rows:
        fields = row.removesuffix(b"\n").split(b" ")
        try:
            end = fields.index(_END_OF_OPTIONAL, _OPTIONAL)
            kind, source, options, *_ = fields[end + 1 :]
            yield Mount(
                number=int(fields[0]),
                device=_decoded(fields[2]),
                root=_decoded(fields[3]),
                point=_decoded(fields[4]),
                tags=tuple(map(_decoded, fields[_OPTIONAL:end])),
                kind=_decoded(kind),
                source=_decoded(source),
                # A comma in an option is escaped, so they are split first.
                options=tuple(map(_decoded, options.split(b","))),
            )
        except ValueError:
            continue


def _decoded(field: bytes) -> str:
    if b"\\" in field:
        field = _ESCAPED.sub(lambda found: bytes((int(found[1], 8),)), field)
    return os.fsdecode(field)
