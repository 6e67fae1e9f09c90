"""What a container with a writable hostPath of the node's logs can put in the place of a log."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import shutil
import signal
import socket
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dockershim.common.beneath import open_file, open_folder, open_or_make_file
from dockershim.errors import FailedPrecondition
from dockershim.logs import position
from dockershim.logs.container_logs import ContainerLogs
from dockershim.logs.follower import COMPLAIN, LogFollower
from dockershim.logs.position import Place
from dockershim.logs.target import Target
from tests.unit.logs.engine import Files, Pod
from tests.unit.logs.following import follow, until


@pytest.fixture
def files(tmp_path: Path) -> Iterator[Files]:
    made = Files(tmp_path)
    yield made
    made.copying.close()


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """A folder of the node with files that are nobody's log."""
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    (folder / "secret").touch()
    return folder


# -- What is put at the path of a log. It gets the path and the folder elsewhere.


def link(path: Path, elsewhere: Path) -> None:
    path.symlink_to(elsewhere / "secret")


def dangling_link(path: Path, elsewhere: Path) -> None:
    path.symlink_to(elsewhere / "new")


def linked_folder(path: Path, elsewhere: Path) -> None:
    shutil.rmtree(path.parent)
    path.parent.symlink_to(elsewhere)


def linked_directory(path: Path, elsewhere: Path) -> None:
    shutil.rmtree(path.parent.parent)
    path.parent.parent.symlink_to(elsewhere)
    (elsewhere / path.parent.name).mkdir()


def folder(path: Path, elsewhere: Path) -> None:
    path.mkdir()


def pipe(path: Path, elsewhere: Path) -> None:
    os.mkfifo(path)


def unix_socket(path: Path, elsewhere: Path) -> None:
    os.mknod(path, stat.S_IFSOCK | 0o666)


def disk(path: Path, elsewhere: Path) -> None:
    # Nobody has it: an open would fail in another way.
    os.mknod(path, stat.S_IFBLK | 0o666, os.makedev(7, 77_777))


def device(path: Path, elsewhere: Path) -> None:
    os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 3))  # /dev/null, which takes everything


Put = Callable[[Path, Path], None]
KINDS = [link, dangling_link, linked_folder, linked_directory, folder, pipe, unix_socket, disk, device]


def replace(files: Files, put: Put, elsewhere: Path) -> None:
    files.kubelet.path.unlink(missing_ok=True)
    put(files.kubelet.path, elsewhere)


# -- When it is put there.


def before_the_start(files: Files, put: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    put()
    files.engine.write(3)
    files.copy()


def while_it_is_written(files: Files, put: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    files.engine.write(3)
    files.copy()
    put()
    files.engine.write(3)
    files.copy()


def before_a_restart(files: Files, put: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    files.engine.write(3)
    files.copy()
    put()
    files.engine.write(3)
    files.restart()
    files.copy()


def before_a_reboot(files: Files, put: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    files.engine.write(3)
    files.copy()
    put()
    monkeypatch.setattr(position, "this_boot", lambda: 7)
    files.restart()
    files.copy()


def before_a_reopen(files: Files, put: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    files.engine.write(3)
    files.copy()
    put()
    files.copying.reopen()


@pytest.mark.parametrize("put", KINDS)
@pytest.mark.parametrize(
    "when", [before_the_start, while_it_is_written, before_a_restart, before_a_reboot, before_a_reopen]
)
def test_nothing_is_followed_and_nothing_but_a_file_is_opened(
    files: Files, elsewhere: Path, put: Put, when: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(OSError, match=str(files.directory)) as caught:
        when(files, lambda: replace(files, put, elsewhere), monkeypatch)
    assert caught.value.errno in (errno.EINVAL, errno.ENOTDIR)
    assert [path.name for path in elsewhere.rglob("*") if path.is_file()] == ["secret"]
    assert (elsewhere / "secret").read_bytes() == b""


def test_a_log_is_written_again_when_what_was_in_its_place_is_gone(files: Files, elsewhere: Path) -> None:
    replace(files, pipe, elsewhere)
    files.engine.write(3)
    for _ in range(2):
        with pytest.raises(OSError, match="not a regular file"):
            files.copy()
    files.kubelet.path.unlink()
    files.copy()
    files.check()


@pytest.mark.parametrize("put", [link, pipe, disk, device])
def test_what_has_the_inode_of_the_last_log_is_not_taken_for_it(files: Files, elsewhere: Path, put: Put) -> None:
    put(files.kubelet.path, elsewhere)
    target = Target(files.directory, files.kubelet.path)
    assert not target.find(Place(files.kubelet.path.lstat().st_ino, 0, 0))
    assert not target.is_open()


@pytest.mark.parametrize("put", [link, pipe, disk, device])
def test_what_has_the_name_of_a_rotated_log_is_not_read(files: Files, elsewhere: Path, put: Put) -> None:
    rotated = files.kubelet.path.with_name("0.log.20260102-030405")
    put(rotated, elsewhere)
    target = Target(files.directory, files.kubelet.path)
    assert target.open_last() == b""
    target.close()


def test_a_link_above_the_pod_s_directory_is_followed(tmp_path: Path) -> None:
    """Of a node whose /var/log is on another disk."""
    (tmp_path / "disk" / "pod").mkdir(parents=True)
    (tmp_path / "log").symlink_to("disk")
    target = Target(tmp_path / "log" / "pod", tmp_path / "log" / "pod" / "0.log")
    assert target.open()
    target.close()
    assert (tmp_path / "disk" / "pod" / "0.log").exists()


# -- What happens between a look and an open.


def at_first(call: Callable[..., Any], act: Callable[[], None], of_interest: Callable[..., bool]) -> Callable[..., Any]:
    """``call``, before whose first use of interest ``act`` is called."""
    done = False

    def acting(*args: Any, **named: Any) -> Any:
        nonlocal done
        if not done and of_interest(*args, **named):
            done = True
            act()
        return call(*args, **named)

    return acting


@contextmanager
def opened(folder: Path) -> Iterator[int]:
    descriptor = open_folder(folder, folder)
    yield descriptor
    os.close(descriptor)


@pytest.mark.parametrize("put", [link, pipe, disk])
def test_a_file_that_is_swapped_after_the_look_is_still_the_one_that_is_opened(
    tmp_path: Path, elsewhere: Path, put: Put, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "0.log"
    path.write_bytes(b"of the log")

    def swap() -> None:
        path.rename(tmp_path / "aside")
        put(path, elsewhere)

    with opened(tmp_path) as descriptor:
        monkeypatch.setattr(os, "fstat", at_first(os.fstat, swap, lambda *_: True))
        with os.fdopen(open_file(descriptor, path, os.O_RDONLY), "rb") as file:
            assert file.read() == b"of the log"


@pytest.mark.parametrize("put", [link, dangling_link, pipe, disk])
def test_what_appears_where_a_file_is_about_to_be_made_is_not_followed(
    tmp_path: Path, elsewhere: Path, put: Put, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "0.log"
    makes = lambda _, flags, *rest, **named: bool(flags & os.O_CREAT)  # noqa: E731
    with opened(tmp_path) as descriptor:
        monkeypatch.setattr(os, "open", at_first(os.open, lambda: put(path, elsewhere), makes))
        with pytest.raises(OSError, match="not a regular file"):
            open_or_make_file(descriptor, path, os.O_RDWR, 0o640)
    assert [one.name for one in elsewhere.iterdir()] == ["secret"]


def test_a_file_that_comes_and_goes_all_the_time_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, real = tmp_path / "0.log", os.open

    def absent(name: Any, flags: int, *rest: Any, **named: Any) -> int:
        if flags & os.O_CREAT:
            path.mkdir()
        elif path.exists():
            path.rmdir()
        return real(name, flags, *rest, **named)

    with opened(tmp_path) as descriptor:
        monkeypatch.setattr(os, "open", absent)
        with pytest.raises(OSError, match="repeatedly"):
            open_or_make_file(descriptor, path, os.O_RDWR, 0o640)


def test_a_folder_that_is_swapped_on_the_way_is_left_for_no_other(
    tmp_path: Path, elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pod's directory is swapped for a link when it is open and its folder is not."""
    pod = tmp_path / "pod"
    (pod / "c").mkdir(parents=True)
    (elsewhere / "c").mkdir()

    def swap() -> None:
        pod.rename(tmp_path / "aside")
        pod.symlink_to(elsewhere)

    monkeypatch.setattr(os, "open", at_first(os.open, swap, lambda name, *_, **named: name == "c"))
    descriptor = open_folder(pod, pod / "c")
    assert os.fstat(descriptor).st_ino == (tmp_path / "aside" / "c").stat().st_ino
    os.close(descriptor)


@pytest.mark.parametrize("path", ["/a/../b", "/elsewhere", "/a/b/../../c"])
def test_what_is_not_below_is_refused(path: str) -> None:
    with pytest.raises(ValueError, match=path):
        open_folder(Path("/a"), Path(path))


# -- What takes long.


def test_a_lease_on_the_log_keeps_nobody_waiting(files: Files) -> None:
    """The kernel makes an open wait for 45 seconds, unless it does not want to wait."""
    files.kubelet.path.touch()
    before = signal.signal(signal.SIGIO, signal.SIG_IGN)
    holder = os.open(files.kubelet.path, os.O_RDWR)
    try:
        fcntl.fcntl(holder, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        with pytest.raises(BlockingIOError):
            files.copy()
    finally:
        os.close(holder)
        signal.signal(signal.SIGIO, before)


@pytest.mark.parametrize("reboot", [False, True])
def test_a_log_that_was_made_a_hole_of_a_terabyte_is_not_read(
    files: Files, reboot: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    files.engine.write(3)
    files.copy()
    before = files.kubelet.path.read_bytes()
    os.truncate(files.kubelet.path, 1 << 40)
    if reboot:
        monkeypatch.setattr(position, "this_boot", lambda: 7)
    files.restart()
    files.engine.write(2)
    files.copy()
    with files.kubelet.path.open("rb") as log:
        assert log.read(len(before)) == before
        log.seek(1 << 40)
        assert log.read().splitlines(keepends=True)[-2:] == files.engine.written[-2:]


@pytest.mark.parametrize(("foreign", "ended"), [(b"foreign\n", b"foreign\n"), (b"foreign", b"foreign\n")])
def test_what_someone_else_wrote_stays_and_the_next_line_begins_on_its_own(
    files: Files, foreign: bytes, ended: bytes
) -> None:
    files.engine.write(3)
    files.copy()
    with files.kubelet.path.open("ab") as log:
        log.write(foreign)
    files.restart()
    files.engine.write(2)
    files.copy()
    written = files.engine.written
    assert files.kubelet.path.read_bytes() == b"".join((*written[:3], ended, *written[3:]))


def test_a_folder_with_names_without_end_is_not_read_to_its_end(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = SimpleNamespace(name="0.log.1", inode=lambda: 1, is_file=lambda follow_symlinks: False)

    @contextmanager
    def endless(folder: int) -> Iterator[Iterator[Any]]:
        yield iter(lambda: entry, None)

    target = Target(files.directory, files.kubelet.path)
    monkeypatch.setattr(os, "scandir", endless)
    assert not target.find(Place(2, 0, 0))
    assert target.open_last() == b""
    target.close()


# -- The others.


@pytest.mark.slow
async def test_a_pipe_in_the_place_of_a_log_costs_only_that_log(
    tmp_path: Path, elsewhere: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    hostile, other = Pod(tmp_path, "hostile"), Pod(tmp_path, "other")
    async with ContainerLogs(tmp_path / "positions") as logs:
        await follow(logs, hostile)
        hostile.kubelet.path.unlink()
        pipe(hostile.kubelet.path, elsewhere)
        hostile.engine.write(1)
        await until(lambda: "cannot write the logs of" in caplog.text)
        with pytest.raises(FailedPrecondition, match="not a regular file"):
            await logs.reopen(hostile.id)
        await follow(logs, other)
        other.engine.write(10)
        await until(other.is_complete)
        other.kubelet.rotate()
        await logs.reopen(other.id)
        assert (await logs.statistics(5)).blocked == 1
    [warning] = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert warning.endswith(f"{hostile.kubelet.path}: is not a regular file")


def test_a_log_that_is_good_and_bad_in_turn_is_told_once_a_minute(tmp_path: Path) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        follower = LogFollower(theirs, tmp_path)
        container: Any = SimpleNamespace(problem="")
        follower._containers["a"] = container
        for now in range(2 * int(COMPLAIN)):
            container.problem = "" if now % 2 else "is not a regular file"
            follower._complain(float(now))
        said = ours.recv(1 << 16).splitlines()
    assert [b"WARNING" in line for line in said] == [True, False, True, False]
