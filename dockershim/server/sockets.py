"""The sockets of the CRI: our own, or one that systemd listens on and passes to this process.

When gRPC binds a path, it removes any file there, and again when it stops. That must not happen to a path that another
server may use. So gRPC binds only a private path. Our own socket is then renamed to its place, ready and with its mode
set; connections on a passed socket are relayed to the private path.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import logging
import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Protocol

import background
from dockershim.common.listener import is_served

logger = logging.getLogger(__name__)

SOCKET_MODE: Final = 0o660
PRIVATE_MODE: Final = 0o700
RELAY_BYTES: Final = 64 * 1024
# Seconds to wait for free descriptors if there are none left to accept with.
ACCEPT_PAUSE: Final = 0.1
# Read-only, as the disk may become read-only; O_NONBLOCK, so as not to wait at a pipe that somebody has put there.
_LOCK_FLAGS: Final = os.O_RDONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class InUse(Exception):
    """Another server uses the socket or the root directory, or a file is there that we must not replace."""


@contextmanager
def instance_lock(root: Path) -> Iterator[None]:
    """Lock ``root``, made if missing, against other servers. Raises InUse. The kernel unlocks it if we are killed.

    Anyone who can open the lock file could lock it and keep every server from starting. So only this user can open the
    file. Only this user can enter the folder too, unless it existed before: then it may have other uses.
    """
    root.mkdir(mode=PRIVATE_MODE, parents=True, exist_ok=True)
    lock = _open_lock(root)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InUse(f"the root directory {root} is in use by another dockershim") from None
        yield
    finally:
        os.close(lock)


def _open_lock(root: Path) -> int:
    path = root / ".lock"
    try:
        lock = os.open(path, _LOCK_FLAGS, 0o600)
    except OSError as error:
        if error.errno not in (errno.EROFS, errno.ENOSPC, errno.EDQUOT):
            raise
        # A full or read-only disk must not keep the server from serving the pods that the engine has.
        return os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _check_private(lock, path)
    except InUse:
        os.close(lock)
        raise
    return lock


def _check_private(lock: int, path: Path) -> None:
    """Raises InUse for a file of another user, who may have made it in a shared folder and may hold it open."""
    status = os.fstat(lock)
    ours = stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid() and status.st_nlink == 1
    if not ours or stat.S_IMODE(status.st_mode) & 0o077:
        raise InUse(f"{path} is accessible to other users; check its owner, then remove it")


class Endpoint(Protocol):
    """A socket that callers connect to. gRPC binds ``bind_path`` after the endpoint is made and before ``open``."""

    @property
    def bind_path(self) -> Path: ...

    async def open(self) -> None:
        """Begin to accept callers."""

    def stop_accepting(self) -> None:
        """Accept no more callers. Existing connections stay open."""

    async def close(self) -> None:
        """Remove all our files."""


class OwnSocket:
    """A socket file at ``path``, mode 0660. Replaces a stale one; raises InUse if a server answers there."""

    def __init__(self, path: Path) -> None:
        _check_free(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._identity: tuple[int, int] | None = None
        self.bind_path = path.with_name(f".{path.name}.{os.getpid()}")

    async def open(self) -> None:
        self.bind_path.chmod(SOCKET_MODE)
        self._identity = _identity(self.bind_path)
        self.bind_path.rename(self._path)

    def stop_accepting(self) -> None:
        """gRPC closes its own listener when it stops."""

    async def close(self) -> None:
        self.bind_path.unlink(missing_ok=True)
        if self._identity is not None and _identity(self._path) == self._identity:
            self._path.unlink()


class PassedSocket:
    """A listening socket ``fd`` that systemd has opened and keeps. gRPC cannot take it, so connections are relayed."""

    def __init__(self, fd: int, private: Path) -> None:
        private.mkdir(parents=True, exist_ok=True, mode=PRIVATE_MODE)
        private.chmod(PRIVATE_MODE)
        self.bind_path = private / f"{fd}.sock"
        self._listener = socket.socket(fileno=fd)
        self._listener.setblocking(False)
        self._accepting: asyncio.Task[None] | None = None
        self._relays = background.Tasks("socket")

    async def open(self) -> None:
        self._accepting = background.keep(self._accept, owner="socket", name=f"accept {self.bind_path.name}")

    def stop_accepting(self) -> None:
        """Later connections wait in the kernel's queue for the next server."""
        if self._accepting is not None:
            self._accepting.cancel()

    async def close(self) -> None:
        self.stop_accepting()
        await background.end(self._accepting)
        await self._relays.close()
        self._listener.close()
        self.bind_path.unlink(missing_ok=True)

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                caller, _ = await loop.sock_accept(self._listener)
            except OSError as error:
                logger.warning("cannot accept connection: %s", error)
                await asyncio.sleep(ACCEPT_PAUSE)
                continue
            self._relays.start(self._serve(caller), "relay")

    async def _serve(self, caller: socket.socket) -> None:
        with caller, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
            caller.setblocking(False)
            server.setblocking(False)
            try:
                await asyncio.get_running_loop().sock_connect(server, str(self.bind_path))
                await relay(caller, server)
            except OSError as error:
                logger.debug("connection lost: %s", error)


async def relay(left: socket.socket, right: socket.socket) -> None:
    """Copy bytes between two non-blocking sockets in both directions, until both sides have ended.

    At most RELAY_BYTES are held per direction: if one side does not read, the other cannot send. The end of one
    direction is passed on, and the other stays open. Raises OSError when a connection breaks.
    """
    copies = [background.child(_copy(*pair), "relay one way") for pair in ((left, right), (right, left))]
    try:
        await asyncio.gather(*copies)
    finally:
        for copy in copies:
            copy.cancel()
        await asyncio.gather(*copies, return_exceptions=True)


async def _copy(source: socket.socket, sink: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    while data := await loop.sock_recv(source, RELAY_BYTES):
        await loop.sock_sendall(sink, data)
    sink.shutdown(socket.SHUT_WR)


def _check_free(path: Path) -> None:
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise InUse(f"{path} exists and is not a socket")
    if is_served(path):
        raise InUse(f"{path} is in use by another server")


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        status = path.lstat()
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino
