"""Where downloaded and built things are kept between runs, and how two runs share them."""

from __future__ import annotations

import fcntl
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
CACHE = Path(os.environ.get("TEST_CACHE", REPOSITORY / ".cache")).resolve()


@contextmanager
def locked(name: str) -> Iterator[None]:
    """Hold the cache's lock `name`: of two runs that need the same thing, one makes it and the other waits."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def appearing(target: Path) -> Iterator[Path]:
    """Give a scratch folder that becomes `target` when the block ends well: what the cache holds is whole.

    Tells the person at the terminal, as it may take minutes and much of the disk.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    say(f"making {target.name} in {target.parent}, once")
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".making-") as scratch:
        made = Path(scratch) / target.name
        made.mkdir()
        yield made
        shutil.rmtree(target, ignore_errors=True)
        made.rename(target)
    say(f"made {target.name} in {time.monotonic() - begun:.0f} s: {_mebibytes(target)} MiB")


def _mebibytes(folder: Path) -> int:
    return sum(path.lstat().st_blocks * 512 for path in folder.rglob("*")) >> 20


def say(text: str) -> None:
    """Tell the person at the terminal; the standard output is that of the command that was asked for."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()
