"""Guests for as long as a block lasts: one, or several that reach each other."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.node.cache import hold, locked
from tests.vm.guest import Guest
from tests.vm.image import NAME, Image, provided
from tests.vm.machines import UML, Machine
from tests.vm.network import Network, network

PREFIX: Final = "dockershim-vm-"  # of the folder of a run's guests


@dataclass(slots=True)
class Site:
    """Where guests of one image run, on one network."""

    machine: Machine
    image: Image
    network: Network
    folder: Path
    guests: list[Guest] = field(default_factory=list)

    def add(self, name: str = NAME) -> Guest:
        """A guest of this name, which is also its host name. It is not switched on yet."""
        folder = self.folder / name
        folder.mkdir()
        guest = Guest(self.machine, self.image, folder, self.network, name)
        self.guests.append(guest)
        return guest


@contextmanager
def site(machine: Machine = UML, disk: AbstractContextManager[Image] | None = None) -> Iterator[Site]:
    """A place for guests of an image, by default this checkout's. At its end they are off, and nothing is left."""
    with disk or provided() as made, network() as bridge, _folder() as folder:
        place = Site(machine, made, bridge, folder)
        try:
            yield place
        finally:
            for guest in place.guests:
                guest.cut_power()


@contextmanager
def running(machine: Machine = UML, disk: AbstractContextManager[Image] | None = None) -> Iterator[Guest]:
    """Boot a guest of an image, by default this checkout's, and switch it off at the end; nothing of it is left."""
    with site(machine, disk) as place:
        guest = place.add()
        took = guest.boot()
        sys.stderr.write(f"the guest is up after {took:.0f} s; this runs a command in it: {guest.entrance}\n")
        yield guest


@contextmanager
def _folder() -> Iterator[Path]:
    """A folder for the files of guests. Those of runs that were killed are removed: no process holds them."""
    # Sockets are in it, and their paths may be no longer than 108 bytes.
    with locked("vm-folders"):
        for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
            with contextlib.suppress(BlockingIOError, FileNotFoundError):
                held = hold(folder)
                shutil.rmtree(folder, ignore_errors=True)
                os.close(held)
        folder = Path(tempfile.mkdtemp(prefix=PREFIX))
        held = hold(folder)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(held)
