"""A guest for as long as a block lasts."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.vm import image
from tests.vm.guest import Guest


@contextmanager
def running() -> Iterator[Guest]:
    """Bring the image into the cache, boot a guest of it, and switch it off at the end; nothing of it is left."""
    # Sockets are in the folder, and their paths may be no longer than 108 bytes.
    with image.provided() as made, tempfile.TemporaryDirectory(prefix="dockershim-vm-") as folder:
        guest = Guest(made, Path(folder))
        try:
            took = guest.boot()
            sys.stderr.write(f"the guest is up after {took:.0f} s; this runs a command in it: {guest.entrance}\n")
            yield guest
        finally:
            guest.cut_power()
