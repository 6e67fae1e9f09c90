"""A guest for as long as a block lasts."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from tests.vm import image
from tests.vm.guest import Guest


@contextmanager
def running(provided: AbstractContextManager[image.Image] | None = None) -> Iterator[Guest]:
    """Boot a guest of an image, by default this checkout's, and switch it off at the end; nothing of it is left."""
    # Sockets are in the folder, and their paths may be no longer than 108 bytes.
    with provided or image.provided() as made, tempfile.TemporaryDirectory(prefix="dockershim-vm-") as folder:
        guest = Guest(made, Path(folder))
        try:
            took = guest.boot()
            sys.stderr.write(f"the guest is up after {took:.0f} s; this runs a command in it: {guest.entrance}\n")
            yield guest
        finally:
            guest.cut_power()
