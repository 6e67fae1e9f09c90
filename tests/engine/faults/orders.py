"""Orders for faults in other processes: a file for each order, which is moved when the order is carried out."""

from __future__ import annotations

import math
import re
import shutil
from pathlib import Path

from tests.waiting import until

ROOT = Path("/run/faults")
#: Orders that wait for their step, and orders that were carried out. A held step goes on when its file is removed.
WAITING = ROOT / "orders"
DONE = ROOT / "done"
#: A file for each subject, with a line for each step that it passed.
SEEN = ROOT / "seen"


def prepare() -> None:
    """Empty folders."""
    clear()
    for folder in (WAITING, DONE, SEEN):
        folder.mkdir(parents=True)


def clear() -> None:
    shutil.rmtree(ROOT, ignore_errors=True)


def file_name(subject: str, place: str, step: str) -> str:
    """The name of an order's file; ``subject`` is a pod's name."""
    return f"{subject}.{place}.{re.sub('[^A-Za-z-]', '-', step)}"


def note(subject: str, step: str) -> None:
    """A step was passed."""
    with (SEEN / subject).open("a") as file:
        file.write(f"{step}\n")


def seen(subject: str) -> list[str]:
    path = SEEN / subject
    return path.read_text().splitlines() if path.exists() else []


def take(subject: str, place: str, step: str) -> str:
    """The fault that is ordered for this step; empty if there is none. An order is carried out once."""
    name = file_name(subject, place, step)
    try:
        (WAITING / name).rename(DONE / name)
    except FileNotFoundError:
        return ""
    return (DONE / name).read_text().strip()


class FileOrder:
    """One order. Another process carries it out, so this one polls for that."""

    def __init__(self, subject: str, place: str, step: str, fault: str) -> None:
        name = file_name(subject, place, step)
        self._waiting, self._done = WAITING / name, DONE / name
        temporary = ROOT / name
        temporary.write_text(fault + "\n")
        temporary.rename(self._waiting)

    @property
    def happened(self) -> bool:
        return not self._waiting.exists()

    async def arrival(self) -> None:
        # The call that leads to it has a deadline, and who waits here stops with it.
        await until(lambda: self.happened, timeout=math.inf)

    def release(self) -> None:
        """Let the held step go on. An order that was not carried out is cancelled."""
        self._waiting.unlink(missing_ok=True)
        self._done.unlink(missing_ok=True)
