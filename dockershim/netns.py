"""Network namespaces of pods: pinned by a bind mount of ours, so that they outlive the infra container."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import socket
import threading
from pathlib import Path

_libc = ctypes.CDLL(None, use_errno=True)

_MS_BIND = 0x1000
_MNT_DETACH = 2
_UMOUNT_NOFOLLOW = 8
_CLONE_NEWNET = 0x40000000
_NSFS_MAGIC = 0x6E736673
_RT_SCOPE_UNIVERSE = 0


def _check(result: int, path: Path) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(path))


def _is_namespace(path: Path) -> bool:
    class Statfs(ctypes.Structure):
        _fields_ = (("f_type", ctypes.c_long), ("rest", ctypes.c_byte * 512))

    result = Statfs()
    found = _libc.statfs(os.fsencode(path), ctypes.byref(result)) == 0
    return found and bool(result.f_type == _NSFS_MAGIC)


class Pins:
    """The folder of pinned network namespaces, one file a sandbox."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def path(self, sandbox_id: str) -> Path:
        """Where a sandbox's namespace is, or would be, pinned."""
        return self._folder / sandbox_id

    def is_pinned(self, sandbox_id: str) -> bool:
        """Whether the pin is there and is a namespace."""
        return _is_namespace(self.path(sandbox_id))

    def pin(self, sandbox_id: str, source: Path) -> Path:
        """Bind the namespace at ``source`` to this sandbox's path. Raises OSError, leaving nothing."""
        target = self.path(sandbox_id)
        self._folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        self.unpin(sandbox_id)
        os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o444))
        try:
            _check(_libc.mount(os.fsencode(source), os.fsencode(target), None, _MS_BIND, None), source)
            if not _is_namespace(target):
                raise OSError(errno.EINVAL, "is not a namespace", str(source))
        except OSError:
            self.unpin(sandbox_id)
            raise
        return target

    def unpin(self, sandbox_id: str) -> None:
        """Undo a pin, however far it came; none is fine."""
        target = self.path(sandbox_id)
        while _libc.umount2(os.fsencode(target), _MNT_DETACH | _UMOUNT_NOFOLLOW) == 0:
            pass
        if ctypes.get_errno() not in (errno.EINVAL, errno.ENOENT):
            # Neither of "no mount point" and "not there".
            _check(-1, target)
        with contextlib.suppress(FileNotFoundError):
            target.unlink()


def addresses(netns: Path, interface: str) -> tuple[str, ...]:
    """The global addresses of an interface inside a network namespace, IPv4 first. Raises OSError.

    For pods whose CNI result nobody kept. The namespace is entered in a thread that ends with the call, so no
    other thread is ever in a pod's network.
    """
    found: list[str] = []
    failure: list[BaseException] = []

    def read() -> None:
        # Imported where it is needed: it is a sixth of the server's memory, and few nodes ever have such a pod.
        from pyroute2 import IPRoute

        try:
            fd = os.open(netns, os.O_RDONLY | os.O_CLOEXEC)
            try:
                _check(_libc.setns(fd, _CLONE_NEWNET), netns)
            finally:
                os.close(fd)
            with IPRoute() as route:
                links = route.link_lookup(ifname=interface)
                messages = route.get_addr(index=links[0]) if links else ()
                by_family = sorted(messages, key=lambda message: message["family"])
                found.extend(
                    message.get_attr("IFA_ADDRESS") for message in by_family if message["scope"] == _RT_SCOPE_UNIVERSE
                )
        except BaseException as error:
            failure.append(error)

    thread = threading.Thread(target=read, name=f"netns {netns.name}")
    thread.start()
    thread.join()
    if failure:
        raise OSError(errno.EIO, f"cannot read the addresses of {interface}: {failure[0]}", str(netns)) from failure[0]
    return tuple(found)


def open_socket(netns: Path | None, family: socket.AddressFamily) -> socket.socket:
    """A TCP socket of a network namespace (None: our own), in which it stays wherever it is used. Raises OSError."""
    if netns is None:
        return socket.socket(family)
    made: list[socket.socket] = []
    failure: list[OSError] = []

    def make() -> None:
        try:
            _enter(netns)
            made.append(socket.socket(family))
        except OSError as error:
            failure.append(error)

    # A thread that ends with it, so that no other work is ever done in a pod's network.
    thread = threading.Thread(target=make, name=f"netns {netns.name}")
    thread.start()
    thread.join()
    if failure:
        raise failure[0]
    return made[0]


def _enter(netns: Path) -> None:
    """Move this thread into a network namespace."""
    fd = os.open(netns, os.O_RDONLY | os.O_CLOEXEC)
    try:
        _check(_libc.setns(fd, _CLONE_NEWNET), netns)
    finally:
        os.close(fd)
