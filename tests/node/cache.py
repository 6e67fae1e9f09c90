"""Where downloaded and built things are kept between runs, and how two runs share them."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
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
    """Give a scratch folder that becomes `target` when the block ends well: what the cache holds is whole."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".making-") as scratch:
        made = Path(scratch) / target.name
        made.mkdir()
        yield made
        shutil.rmtree(target, ignore_errors=True)
        made.rename(target)
