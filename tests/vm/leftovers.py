"""What guests of one run could leave on the machine. Other runs may go on meanwhile, so it is looked for by name."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from tests.vm.running import Site

# User Mode Linux has a guest's memory in a file there, whose name it removes at once.
MEMORY = Path("/dev/shm")
MEMORY_FILES = "vm_file-*"


def memory_files() -> set[Path]:
    """The files of guests' memory that have a name."""
    return set(MEMORY.glob(MEMORY_FILES))


def left_by(place: Site, namespace: Path) -> list[str]:
    """What is there of guests that have run: their folder, and processes of theirs or in their network's namespace."""
    found = [f"folder: {place.folder}"] if place.folder.exists() else []
    return found + processes_of(place.folder, namespace)


def processes_of(folder: Path, namespace: Path | None = None) -> list[str]:
    """The processes of guests whose files are in the folder, and those in the network namespace."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended meanwhile
            command = process.joinpath("cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if str(folder) in command or process.joinpath("ns/net").readlink() == namespace:
                found.append(f"process: {process.name} {command}")
    return found
