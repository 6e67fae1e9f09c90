"""Bind mounts whose names a tenant chose, to be made in a test node or a mount namespace of the test's own."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

#: What splits a text for Python, and not for the kernel.
SEPARATORS: Final = ("\r", "\x0b", "\x0c", "\x1c", "\x1d", "\x1e", "\x85", "\xa0", "\u2003", "\u2028", "\u2029")
#: What readers may take for a quote or an escape, what the kernel escapes, and bytes that are no UTF-8.
OTHERS: Final = ('"', "'", "\\", r"\134", " \t\n#", "\udcff", "\udc85")
NAMES: Final = tuple(f"a{one}b" for one in (*SEPARATORS, *OTHERS))


def forged(row: str) -> str:
    """The name of a folder, with others in it where ``row`` has slashes: for whoever splits mountinfo as Python does, a
    row of its own begins in it."""
    return "a\u2003a\u2028" + row.replace(" ", "\u2003") + "\u2003"


def bind(folder: Path, names: Iterable[str] = NAMES) -> list[Path]:
    """Mount a folder of each name, below ``folder``, at a place beside it; return these places."""
    places = []
    for number, name in enumerate(names):
        source, place = folder / "volumes" / name, folder / "places" / str(number)
        source.mkdir(parents=True)
        place.mkdir(parents=True)
        subprocess.run(["mount", "--bind", os.fsencode(source), place], check=True)
        places.append(place)
    return places


@contextmanager
def bound(folder: Path, names: Iterable[str] = NAMES) -> Iterator[None]:
    """The same for the length of a block."""
    places = bind(folder, names)
    try:
        yield
    finally:
        subprocess.run(["umount", *places], check=True)
