"""Where downloaded and built things are kept between runs, and how all clones of the repository share them.

An entry is a folder whose name ends in a digest of what it is made of, so that clones of different commits have their
own beside each other. What nobody has used for a month is removed when the next entry is made.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

REPOSITORY = Path(__file__).resolve().parents[2]
#: Folders of running nodes. They belong to this clone: the tests of one clone do not see the nodes of another.
NODES: Final = REPOSITORY / ".nodes"
#: An entry that was last used before so many seconds is removed.
KEPT: Final = 30 * 24 * 3600.0

_SCRATCH: Final = ".making-"
_REMOVED: Final = ".removing-"
_DIGITS: Final = 8


def _folder(environment: Mapping[str, str]) -> Path:
    """TEST_CACHE, or a folder in the user's cache. The XDG specification says to ignore a relative XDG_CACHE_HOME."""
    if own := environment.get("TEST_CACHE"):
        return Path(own).resolve()
    users = Path(environment.get("XDG_CACHE_HOME", ""))
    return (users if users.is_absolute() else Path.home() / ".cache").resolve() / "dockershim-tests"


CACHE: Final = _folder(os.environ)


def entry(name: str, content: bytes | str) -> Path:
    """The path of the entry `name` that is made of `content`: another content is another entry."""
    made_of = content.encode() if isinstance(content, str) else content
    return CACHE / f"{name}-{hashlib.sha256(made_of).hexdigest()[:_DIGITS]}"


def used(target: Path) -> bool:
    """Whether `target` has been made; it is then kept for another month."""
    with locked("cache"):
        try:
            os.utime(target)
        except FileNotFoundError:
            return False
    return True


@contextmanager
def locked(name: str, folder: Path | None = None) -> Iterator[None]:
    """Hold a lock of the cache, or of `folder`: of two runs that need the same thing, one makes it, the other waits."""
    folder = folder or CACHE
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def hold(folder: Path, kind: int = fcntl.LOCK_EX) -> int:
    """Lock a folder until the descriptor that is returned is closed; BlockingIOError when another process holds it."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise
    return descriptor


@contextmanager
def appearing(target: Path) -> Iterator[Path]:
    """Give a scratch folder that becomes `target` when the block ends well: what the cache holds is whole.

    Tells the person at the terminal, as it may take minutes and much of the disk.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    prune()
    say(f"making {target.name} in {target.parent}, once")
    begun = time.monotonic()
    with _scratch(target.parent) as scratch:
        made = scratch / target.name
        made.mkdir()
        yield made
        # What unpacks a package gives the folder the package's time.
        os.utime(made)
        # The name is not to be on the disk before the files are: a power cut would leave empty ones.
        os.sync()
        try:
            made.rename(target)
        except OSError as error:
            # Another run has made it meanwhile, and may use it by now.
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
    say(f"made {target.name} in {time.monotonic() - begun:.0f} s: {_mebibytes(target)} MiB")


@contextmanager
def _scratch(parent: Path) -> Iterator[Path]:
    """A folder that `prune` leaves alone as long as this process lives."""
    with locked("cache"):
        folder = Path(tempfile.mkdtemp(dir=parent, prefix=_SCRATCH))
        held = hold(folder)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(held)


def prune() -> None:
    """Remove the entries that nobody has used for KEPT seconds, and what killed runs were making or removing."""
    oldest = time.time() - KEPT
    removed: list[Path] = []
    with locked("cache"):
        # `used` takes this lock too: an entry is either renamed before, and made anew, or kept.
        for folder in CACHE.iterdir():
            if not folder.is_dir() or not _is_stale(folder, oldest):
                continue
            with contextlib.suppress(BlockingIOError):
                held = hold(folder)
                gone = folder if folder.name.startswith(_REMOVED) else folder.with_name(f"{_REMOVED}{folder.name}")
                folder.rename(gone)
                os.close(held)
                removed.append(gone)
    for folder in removed:
        shutil.rmtree(folder, ignore_errors=True)


def _is_stale(folder: Path, oldest: float) -> bool:
    if folder.name.startswith((_SCRATCH, _REMOVED)):
        return True
    _, _, digest = folder.name.rpartition("-")
    is_entry = len(digest) == _DIGITS and set(digest) <= set("0123456789abcdef")
    return is_entry and folder.stat().st_mtime < oldest


def _mebibytes(folder: Path) -> int:
    return sum(path.lstat().st_blocks * 512 for path in folder.rglob("*")) >> 20


def say(text: str) -> None:
    """Tell the person at the terminal; the standard output is that of the command that was asked for."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()
