"""What pods need of the machine: mounts, disks, inotify, security modules."""

from __future__ import annotations

import errno
import os
import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from asyncinotify import Inotify, Mask

from dockershim.common.mountinfo import Mount
from dockershim.doctor.findings import Finding, fail, ok, sysctl_fix, warn
from dockershim.doctor.node_files import number, text

KUBELET: Final = Path("/var/lib/kubelet")
#: Below 15 % (images) and 10 % (all else) a kubelet evicts pods; below 5 % the writes of pods soon fail.
_SCARCE: Final = 0.15
_FULL: Final = 0.05
#: The kernel's own defaults: with less, a node of 110 pods runs out.
_INSTANCES: Final = 128
_WATCHES: Final = 8192


def check_propagation(mounts: Iterable[Mount], folders: Iterable[Path]) -> Iterator[Finding]:
    """Whether mounts below each of ``folders`` reach the containers that see it."""
    title = "mount propagation"
    # The last mount of a point counts.
    shared = {mount.point: mount.is_shared for mount in mounts}
    private = []
    for folder in folders:
        point = next((str(path) for path in (folder, *folder.parents) if str(path) in shared), "/")
        if not shared.get(point, True):
            private.append((folder, point))
    for folder, point in private:
        found = f"{folder} is not shared: volumes that are mounted later are not visible in pods"
        edit = f"mount --make-rshared {point}"
        yield fail(title, found, edit) if folder == KUBELET else warn(title, found, edit)
    if not private:
        yield ok(title, f"{', '.join(map(str, folders))}: shared")


@dataclass(frozen=True, slots=True)
class Space:
    """The file system below a folder: bytes and inodes, free ones as an unprivileged process has them."""

    device: int
    free: int
    size: int
    free_inodes: int
    inodes: int
    read_only: bool


def measure(folder: Path) -> Space | None:
    """The space of a folder's file system, or of its nearest parent that exists. None if it cannot be read."""
    for place in (folder, *folder.parents):
        try:
            found = os.statvfs(place)
            device = place.stat().st_dev
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError:
            return None
        free, size = found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize
        return Space(device, free, size, found.f_favail, found.f_files, bool(found.f_flag & os.ST_RDONLY))
    return None


def check_space(places: Mapping[str, tuple[Path, Space | None]]) -> Iterator[Finding]:
    """``places`` by what is there. A finding for each file system."""
    by_device: dict[int, list[str]] = {}
    for what, (folder, space) in places.items():
        if space is None:
            yield warn("disk space", f"{what} {folder}: unknown", f"df {shlex.quote(str(folder))}")
        else:
            by_device.setdefault(space.device, []).append(what)
    for names in by_device.values():
        folder, space = places[names[0]]
        assert space is not None, "only file systems that were measured are here"
        where = ", ".join(f"{what} {places[what][0]}" for what in names)
        yield _space(where, shlex.quote(str(folder)), space, has_images="images" in names)


def _space(where: str, path: str, space: Space, *, has_images: bool) -> Finding:
    title = "disk space"
    bytes_left = space.free / space.size if space.size else 1.0
    inodes_left = space.free_inodes / space.inodes if space.inodes else 1.0
    found = f"{where}: {_mebibytes(space.free)} of {_mebibytes(space.size)} and {inodes_left:.0%} of inodes free"
    if space.read_only:
        return fail(title, f"{where}: read-only", f"mount -o remount,rw $(findmnt -nT {path} -o TARGET)")
    left = min(bytes_left, inodes_left)
    if left >= _SCARCE:
        return ok(title, found)
    usage = f"du -x{' --inodes' if inodes_left < bytes_left else ''} --max-depth=3 {path} | sort -n | tail"
    fix = "docker image prune --all" if has_images else usage
    return fail(title, found, fix) if left < _FULL else warn(title, found, fix)


def _mebibytes(size: int) -> str:
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / 2**20:.1f} MiB"


def check_inotify(sysctls: Path, problem: int | None) -> Iterator[Finding]:
    """``sysctls`` is /proc/sys; ``problem`` the errno of a try to watch a file, None if it worked."""
    title, folder = "inotify", "fs.inotify.max_user_"
    instances = number(sysctls / "fs/inotify/max_user_instances")
    watches = number(sysctls / "fs/inotify/max_user_watches")
    found = f"{instances} instances and {watches} watches per user"
    if problem == errno.EMFILE:
        yield fail(title, f"no instances left of {found}", sysctl_fix(f"{folder}instances", 8192))
    elif problem == errno.ENOSPC:
        yield fail(title, f"no watches left of {found}", sysctl_fix(f"{folder}watches", 524288))
    elif instances is not None and instances < _INSTANCES:
        yield warn(title, f"only {found}", sysctl_fix(f"{folder}instances", 8192))
    elif watches is not None and watches < _WATCHES:
        yield warn(title, f"only {found}", sysctl_fix(f"{folder}watches", 524288))
    else:
        yield ok(title, found)


def try_to_watch(path: Path = Path("/proc/self")) -> int | None:
    """The errno of one more watch; None if it works."""
    try:
        with Inotify() as inotify:
            inotify.add_watch(path, Mask.DELETE_SELF)
    except OSError as error:
        return error.errno
    return None


def kernel_lsms(sys: Path = Path("/sys")) -> list[str]:
    """The security modules that are enabled in this kernel, of AppArmor and SELinux."""
    found = (text(sys / "kernel/security/lsm") or "").strip().split(",")
    if (text(sys / "module/apparmor/parameters/enabled") or "").startswith("Y"):
        found.append("apparmor")
    if (sys / "fs/selinux/enforce").exists():
        found.append("selinux")
    return found
