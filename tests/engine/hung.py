"""A file system that has stopped answering, as that of a dead NFS server or of a driver that hangs."""

from __future__ import annotations

import contextlib
import ctypes
import os
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_libc = ctypes.CDLL(None, use_errno=True)

_MNT_FORCE, _MNT_DETACH = 1, 2
_INIT = 26
# fuse.h: the headers of a request and of an answer, and the answer to INIT of protocol 7.31.
_REQUEST, _ANSWER, _INIT_ANSWER = struct.Struct("<IIQQ"), struct.Struct("<IiQ"), struct.Struct("<IIIIHHIIHHI28x")


@contextmanager
def hung(folder: Path) -> Iterator[Path]:
    """Mount such a file system at ``folder`` for a block. After it, calls that wait get errors.

    Its requests are taken and never answered: a thread that waits for one cannot even be killed.
    """
    fd = _mount(folder)
    taker = threading.Thread(target=_take, args=(fd,), name=f"hung {folder}")
    taker.start()
    try:
        yield folder
    finally:
        _unmount(folder)
        taker.join()
        os.close(fd)


@contextmanager
def disconnected(folder: Path) -> Iterator[Path]:
    """Mount a file system whose daemon has died at ``folder`` for a block: every access is an error."""
    os.close(_mount(folder))
    try:
        yield folder
    finally:
        _unmount(folder)


def _mount(folder: Path) -> int:
    folder.mkdir(parents=True, exist_ok=True)
    fd = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    options = f"fd={fd},rootmode=40000,user_id=0,group_id=0,allow_other"
    _check(_libc.mount(b"hung", os.fsencode(folder), b"fuse.hung", 0, options.encode()), folder)
    return fd


def _unmount(folder: Path) -> None:
    # By force: this ends the connection, and so every call that waits for it.
    _check(_libc.umount2(os.fsencode(folder), _MNT_FORCE | _MNT_DETACH), folder)


def _take(fd: int) -> None:
    with contextlib.suppress(OSError):
        while request := os.read(fd, 1 << 18):
            _, opcode, unique, _ = _REQUEST.unpack_from(request)
            if opcode == _INIT:
                body = _INIT_ANSWER.pack(7, 31, 1 << 16, 0, 16, 12, 1 << 17, 1, 0, 0, 0)
                os.write(fd, _ANSWER.pack(_ANSWER.size + len(body), 0, unique) + body)


def _check(result: int, path: Path) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(path))
