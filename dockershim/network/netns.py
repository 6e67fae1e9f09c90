"""Network namespaces of pods. dockershim pins each by a bind mount, so that it outlives the infra container."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import hashlib
import os
import re
import signal
import socket
import stat
import struct
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, TypeVar

from dockershim.common.mountinfo import mounts
from dockershim.errors import InvalidArgument

T = TypeVar("T")

#: Where runtimes pin network namespaces. CNI daemons in pods mount it, with mount propagation, by this very name.
FOLDER: Final = Path("/var/run/netns")

_libc = ctypes.CDLL(None, use_errno=True)

_MS_BIND = 0x1000
_MS_REC = 0x4000
_MS_SHARED = 1 << 20
_MNT_DETACH = 2
_UMOUNT_NOFOLLOW = 8
_CLONE_NEWNET = 0x40000000
_NSFS_MAGIC = 0x6E736673
_RT_SCOPE_UNIVERSE = 0
_SIOCSIFFLAGS = 0x8914
_IFF_UP = 1


def _check(result: int, path: Path) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(path))


class _Statfs(ctypes.Structure):
    _fields_ = (("f_type", ctypes.c_long), ("rest", ctypes.c_byte * 512))


def _is_namespace(path: Path) -> bool:
    result = _Statfs()
    found = _libc.statfs(os.fsencode(path), ctypes.byref(result)) == 0
    return found and bool(result.f_type == _NSFS_MAGIC)


class Pins:
    """The pinned network namespaces of one server: one file for each sandbox, in a ``folder`` that others use too.

    A pin is named ``dockershim-<hash of the server's folder state>-<sandbox id>``.
    """

    def __init__(self, state: Path, folder: Path = FOLDER) -> None:
        self._folder = folder
        self._prefix = f"dockershim-{hashlib.sha256(bytes(state.resolve())).hexdigest()[:8]}-"

    def share(self) -> None:
        """Let pods that mount the folder see later pins. Raises OSError.

        If its mount does not propagate, for example because init leaves / private, make the folder a shared mount of
        its own, as ``ip netns`` does.
        """
        self._folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        folder = os.fsencode(self._folder)
        below = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            if _propagates(below) or _libc.mount(None, folder, None, _MS_SHARED, None) == 0:
                return
            _check(_libc.mount(folder, folder, None, _MS_BIND | _MS_REC, None), self._folder)
            _check(_libc.mount(None, folder, None, _MS_SHARED | _MS_REC, None), self._folder)
            # Each earlier pin is mounted twice now; the hidden mount would keep its owner from removing the file.
            for hidden in Path(f"/proc/self/fd/{below}").iterdir():
                _libc.umount2(os.fsencode(hidden), _MNT_DETACH | _UMOUNT_NOFOLLOW)
        finally:
            os.close(below)

    def path(self, sandbox_id: str) -> Path:
        """The path where a sandbox's namespace is pinned or would be."""
        return Path(f"{self.beginning}{sandbox_id}")

    def pinned(self) -> set[str]:
        """The ids of the sandboxes that this server has pinned, even if only in part. Raises OSError."""
        prefix = self._prefix
        return {name.removeprefix(prefix) for name in names_in(self._folder) if name.startswith(prefix)}

    def is_pinned(self, sandbox_id: str) -> bool:
        """Whether the pin exists and is a namespace."""
        return _is_namespace(self.path(sandbox_id))

    def pin(self, sandbox_id: str, source: Path) -> Path:
        """Bind the namespace at ``source`` to this sandbox's path. Raises OSError, and leaves nothing then."""
        self._folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        self.unpin(sandbox_id)
        target = self.path(sandbox_id)
        os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o444))
        try:
            _check(_libc.mount(os.fsencode(source), os.fsencode(target), None, _MS_BIND, None), source)
            if not _is_namespace(target):
                raise OSError(errno.EINVAL, "is not a namespace", str(source))
        except OSError:
            self.unpin(sandbox_id)
            raise
        return target

    @property
    def beginning(self) -> str:
        """What the path of each new pin begins with; the rest is the sandbox's id."""
        return f"{self._folder}/{self._prefix}"

    def make(self, sandbox_id: str, sysctls: Mapping[str, str]) -> Path:
        """Pin a new namespace, in which the loopback interface is up and these sysctls are set.

        So the engine makes them. This thread stays in the namespace, so it must do nothing else. Raises InvalidArgument
        for a sysctl, and OSError, and leaves nothing then.
        """
        _check(_libc.unshare(_CLONE_NEWNET), Path("/proc/thread-self/ns/net"))
        _loopback_up()
        for name, value in sysctls.items():
            _set_sysctl(name, value)
        return self.pin(sandbox_id, Path("/proc/thread-self/ns/net"))

    def has_joined(self, sandbox_id: str, netns: Path) -> bool:
        """Whether the namespace at ``netns`` is the one that is pinned. Raises OSError."""
        return _identity(netns) == _identity(self.path(sandbox_id))

    # What is in a namespace. Callers reach the functions of this module through the pins, so that a test, which has no
    # namespaces, can stand in for all of them at once.

    def addresses(self, netns: Path, interface: str) -> tuple[str, ...]:
        """See ``addresses``."""
        return addresses(netns, interface)

    def restore_link(self, netns: Path, interface: str, addresses: Sequence[str]) -> bool:
        """See ``restore_link``."""
        return restore_link(netns, interface, addresses)

    def end_processes(self, netns: Path) -> int:
        """See ``end_processes``."""
        return end_processes(netns)

    def release_others(self, netns: Path) -> list[str]:
        """See ``release_others``."""
        return release_others(netns)

    def pin_stand_in(self, sandbox_id: str, interface: str, addresses: Sequence[str]) -> Path:
        """Pin a new namespace in place of a lost one, with the same interface, which is down, and its addresses.

        ``addresses`` have their prefix lengths. Raises OSError, and leaves nothing then.
        """
        return _in_a_thread(lambda: self._pin_stand_in(sandbox_id, interface, addresses), f"stand-in {sandbox_id}")

    def _pin_stand_in(self, sandbox_id: str, interface: str, addresses: Sequence[str]) -> Path:
        _check(_libc.unshare(_CLONE_NEWNET), Path("/proc/thread-self/ns/net"))
        _add_link(interface, addresses)
        return self.pin(sandbox_id, Path("/proc/thread-self/ns/net"))

    def unpin(self, sandbox_id: str) -> None:
        """Remove a pin, even a partial one. Does nothing if there is none."""
        target = self.path(sandbox_id)
        while _libc.umount2(os.fsencode(target), _MNT_DETACH | _UMOUNT_NOFOLLOW) == 0:
            pass
        if ctypes.get_errno() not in (errno.EINVAL, errno.ENOENT):
            # Those two mean "no mount point" and "does not exist".
            _check(-1, target)
        with contextlib.suppress(FileNotFoundError):
            target.unlink()


def _propagates(folder: int) -> bool:
    """Whether mounts made in an open folder propagate to the other mounts of its file system (proc(5), mountinfo)."""
    of_it = re.search(r"^mnt_id:\s*(\d+)$", Path(f"/proc/self/fdinfo/{folder}").read_text(), re.MULTILINE)
    assert of_it is not None, "the kernel tells the mount of each descriptor"
    return any(mount.number == int(of_it[1]) and mount.is_shared for mount in mounts())


def names_in(folder: Path) -> set[str]:
    """The names of the files in a folder; none if there is no folder. Raises OSError."""
    try:
        return {path.name for path in folder.iterdir()}
    except FileNotFoundError:
        return set()


def restore_link(netns: Path, interface: str, addresses: Sequence[str]) -> bool:
    """Add an interface, which is down, with these addresses to a network namespace, unless it has one of this name.

    Returns whether it added one. ``addresses`` have their prefix lengths. Raises OSError.
    """

    def restore() -> bool:
        _enter(netns)
        try:
            socket.if_nametoindex(interface)
        except OSError:
            _add_link(interface, addresses)
            return True
        return False

    return _in_a_thread(restore, f"netns {netns.name}")


def _add_link(interface: str, addresses: Sequence[str]) -> None:
    """Add the interface in the namespace of this thread. Raises OSError, and leaves nothing then."""
    from pyroute2 import IPRoute, NetlinkError

    with IPRoute() as route:
        try:
            route.link("add", ifname=interface, kind="veth", peer="stand-in")
            index = route.link_lookup(ifname=interface)[0]
        except NetlinkError as error:
            raise OSError(error.code, f"cannot create interface {interface}: {error}") from error
        try:
            _allow_ipv6(interface)
            for address in addresses:
                route.addr("add", index=index, address=address)
        except (NetlinkError, OSError) as error:
            route.link("del", index=index)
            raise OSError(errno.EIO, f"cannot assign {', '.join(addresses)} to {interface}: {error}") from error


def _loopback_up() -> None:
    """Bring lo up in the namespace of this thread (netdevice(7))."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as one:
        fcntl.ioctl(one, _SIOCSIFFLAGS, struct.pack("16sH22x", b"lo", _IFF_UP))


def _set_sysctl(name: str, value: str) -> None:
    """Set a sysctl in the namespace of this thread; ``name`` has dots. Raises InvalidArgument."""
    try:
        Path("/proc/sys", *name.split(".")).write_text(value)
    except OSError as error:
        raise InvalidArgument(f"config.linux.sysctls[{name}]: cannot set {value!r}: {error.strerror}") from error


def _allow_ipv6(interface: str) -> None:
    """Turn IPv6 on: the engine turns it off in the namespaces that it makes. Does nothing on a kernel without IPv6."""
    with contextlib.suppress(FileNotFoundError):
        Path("/proc/sys/net/ipv6/conf", interface, "disable_ipv6").write_text("0")


def _in_a_thread(work: Callable[[], T], name: str) -> T:
    """Do the work in a thread of its own and return the result, so that no other work runs in a pod's network."""
    found: list[T] = []
    failure: list[BaseException] = []

    def run() -> None:
        try:
            found.append(work())
        except BaseException as error:
            failure.append(error)

    thread = threading.Thread(target=run, name=name)
    thread.start()
    thread.join()
    if failure:
        raise failure[0]
    return found[0]


def addresses(netns: Path, interface: str) -> tuple[str, ...]:
    """The global addresses of an interface inside a network namespace, IPv4 first. Raises OSError.

    For pods whose CNI result is not in the cache.
    """
    try:
        return _in_a_thread(lambda: _read_addresses(netns, interface), f"netns {netns.name}")
    except Exception as error:
        raise OSError(errno.EIO, f"cannot read the IP addresses of {interface}: {error}", str(netns)) from error


def _read_addresses(netns: Path, interface: str) -> tuple[str, ...]:
    # Imported only here: it takes a sixth of the server's memory, and few nodes ever have such a pod.
    from pyroute2 import IPRoute

    _enter(netns)
    with IPRoute() as route:
        links = route.link_lookup(ifname=interface)
        messages = route.get_addr(index=links[0]) if links else ()
        by_family = sorted(messages, key=lambda message: message["family"])
        return tuple(message.get_attr("IFA_ADDRESS") for message in by_family if message["scope"] == _RT_SCOPE_UNIVERSE)


def end_processes(netns: Path) -> int:
    """Send SIGKILL to each process in a network namespace; return their number. Raises OSError if it does not exist."""
    wanted = _identity(netns)
    if wanted == _identity(Path("/proc/self/ns/net")):
        raise OSError(errno.EINVAL, "is this process's own namespace", str(netns))
    ended = 0
    for process in Path("/proc").glob("[0-9]*"):
        # The pidfd is opened before the check, so that the signal cannot reach another process that got the same pid.
        with contextlib.suppress(OSError):
            descriptor = os.pidfd_open(int(process.name))
            try:
                if _identity(process / "ns" / "net") == wanted:
                    signal.pidfd_send_signal(descriptor, signal.SIGKILL)
                    ended += 1
            finally:
                os.close(descriptor)
    return ended


def release_others(netns: Path) -> list[str]:
    """Remove the mounts that others, for example the engine, made of a namespace; return their paths. Raises OSError.

    For a namespace that nobody else uses any more.
    """
    namespace = _identity(netns)
    pin = netns.parent.resolve() / netns.name
    found = [Path(mount.point) for mount in mounts() if mount.root == f"net:[{namespace[1]}]"]
    return [str(path) for path in found if path != pin and _release(path, namespace)]


def _release(path: Path, namespace: tuple[int, int]) -> bool:
    """Unmount a namespace from ``path``, and remove the empty file below it. Raises OSError.

    Does nothing, and returns False, if something else is there by now: the mount has ended, or the owner of a folder
    above has put a link in its place.
    """
    try:
        folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return _unmount(path, folder, namespace)
    finally:
        os.close(folder)


def _unmount(path: Path, folder: int, namespace: tuple[int, int]) -> bool:
    try:
        target = os.open(path.name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    except OSError:
        return False
    try:
        status = os.fstat(target)
        if (status.st_dev, status.st_ino) != namespace:
            return False
        # By the descriptor, as the path may lead to another mount a moment later. It is open, so the mount is busy.
        _check(_libc.umount2(f"/proc/self/fd/{target}".encode(), _MNT_DETACH), path)
    finally:
        os.close(target)
    with contextlib.suppress(OSError):
        below = os.stat(path.name, dir_fd=folder, follow_symlinks=False)
        if stat.S_ISREG(below.st_mode) and below.st_size == 0:
            os.unlink(path.name, dir_fd=folder)
    return True


def _identity(namespace: Path) -> tuple[int, int]:
    status = namespace.stat()
    return status.st_dev, status.st_ino


def open_socket(netns: Path | None, family: socket.AddressFamily) -> socket.socket:
    """A TCP socket of a network namespace (None: our own). It stays in that one in every thread. Raises OSError."""
    if netns is None:
        return socket.socket(family)

    def make() -> socket.socket:
        _enter(netns)
        return socket.socket(family)

    return _in_a_thread(make, f"netns {netns.name}")


def _enter(netns: Path) -> None:
    """Move this thread into a network namespace."""
    fd = os.open(netns, os.O_RDONLY | os.O_CLOEXEC)
    try:
        _check(_libc.setns(fd, _CLONE_NEWNET), netns)
    finally:
        os.close(fd)
