from __future__ import annotations

import contextlib
import errno
import os
import socket
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from checkpoints import (
    Checkpoint,
    CheckpointError,
    DamagedCheckpoint,
    InvalidSandboxId,
    MissingCheckpoint,
    NewerCheckpoint,
    PortMapping,
    Store,
    encode,
)
from checkpoints.store import MAXIMUM_SIZE
from tests.processes import descriptors

ID = "a" * 64
OTHER = "b" * 64
RECORD = Checkpoint(ID, "web-0", "default", (PortMapping("tcp", 80, 8080),), uid="u", attempt=1, network="cni")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "root" / "sandbox"


@pytest.fixture
def store(folder: Path) -> Store:
    return Store(folder)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def everything_under(path: Path) -> list[str]:
    return sorted(str(found.relative_to(path)) for found in path.rglob("*"))


def test_what_is_written_is_read_and_listed(store: Store, folder: Path) -> None:
    store.write(RECORD)
    assert store.read(ID) == RECORD
    assert store.load_all() == ([RECORD], [])
    assert names(folder) == [ID]
    assert folder.stat().st_mode & 0o777 == 0o700
    assert (folder / ID).stat().st_mode & 0o777 == 0o600


def test_a_second_write_replaces_the_first(store: Store, folder: Path) -> None:
    store.write(RECORD)
    store.write(replace(RECORD, log_directory="pods"))
    assert store.read(ID).log_directory == "pods"
    assert names(folder) == [ID]


def test_all_are_listed_by_name(store: Store) -> None:
    store.write(replace(RECORD, sandbox_id=OTHER))
    store.write(RECORD)
    checkpoints, problems = store.load_all()
    assert [checkpoint.sandbox_id for checkpoint in checkpoints] == [ID, OTHER]
    assert problems == []


def test_a_foreign_folder_is_only_read_until_a_sandbox_is_removed(store: Store, folder: Path) -> None:
    store.write(RECORD)
    (folder / OTHER).write_bytes(b"{")
    (folder / ".tmp-of-somebody").touch()
    foreign = Store(folder, foreign=True)
    checkpoints, [problem] = foreign.load_all()
    assert checkpoints == [RECORD]
    assert (problem.file_name, problem.set_aside) == (OTHER, None)
    assert everything_under(folder.parent) == [
        "sandbox",
        *(f"sandbox/{name}" for name in (".tmp-of-somebody", ID, OTHER)),
    ]
    foreign.remove(ID)
    assert names(folder) == [".tmp-of-somebody", OTHER]


def test_removing_twice_is_fine(store: Store) -> None:
    store.write(RECORD)
    store.remove(ID)
    store.remove(ID)
    with pytest.raises(MissingCheckpoint):
        store.read(ID)


def test_without_a_folder_there_is_nothing(store: Store, tmp_path: Path) -> None:
    with pytest.raises(MissingCheckpoint):
        store.read(ID)
    store.remove(ID)
    assert store.load_all() == ([], [])
    assert everything_under(tmp_path) == []


def test_a_write_costs_two_syncs(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.write(RECORD)
    synced: list[str] = []
    fsync = os.fsync

    def count(descriptor: int) -> None:
        synced.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", count)
    store.write(replace(RECORD, sandbox_id=OTHER))
    assert len(synced) == 2
    assert synced[0].startswith(f".tmp-{OTHER}")
    assert synced[1] == "sandbox"


@pytest.mark.parametrize(
    "sandbox_id", ["", ".", "..", "../x", "a/b", "/etc/passwd", ".hidden", "a\0b", "ä", "a\n", "a" * 129]
)
def test_an_id_that_is_no_file_name_is_refused(store: Store, tmp_path: Path, sandbox_id: str) -> None:
    calls: list[Callable[[], object]] = [
        lambda: store.write(replace(RECORD, sandbox_id=sandbox_id)),
        lambda: store.read(sandbox_id),
        lambda: store.remove(sandbox_id),
    ]
    for call in calls:
        with pytest.raises(InvalidSandboxId):
            call()
    assert everything_under(tmp_path) == []


def test_a_checkpoint_beyond_the_bound_is_not_written(store: Store, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="at most"):
        store.write(replace(RECORD, annotations={"a": "x" * MAXIMUM_SIZE}))
    assert everything_under(tmp_path) == []


# -- failures of a write, at every step


FAILING_CALLS = ["mkdir", "open", "write", "fsync", "rename"]


def fail_nth_call(monkeypatch: pytest.MonkeyPatch, name: str, nth: int, code: int) -> list[int]:
    """Makes the n-th call of ``os.<name>`` fail; the returned list counts the calls."""
    real = getattr(os, name)
    calls: list[int] = []

    def fails(*arguments: Any, **keywords: Any) -> Any:
        calls.append(1)
        if len(calls) == nth:
            raise OSError(code, os.strerror(code))
        return real(*arguments, **keywords)

    monkeypatch.setattr(os, name, fails)
    return calls


@pytest.mark.parametrize(
    ("name", "nth"),
    [
        pytest.param("mkdir", 1, id="folder-not-made"),
        pytest.param("open", 1, id="parent-not-opened"),
        pytest.param("fsync", 1, id="parent-not-synced"),
        pytest.param("open", 2, id="folder-not-opened"),
        pytest.param("open", 3, id="temporary-file-not-made"),
        pytest.param("write", 1, id="disk-full"),
        pytest.param("fsync", 2, id="file-not-synced"),
        pytest.param("stat", 1, id="old-file-not-looked-up"),
        pytest.param("rename", 1, id="not-renamed"),
        pytest.param("fsync", 3, id="folder-not-synced"),
    ],
)
def test_a_first_write_that_fails_leaves_nothing(
    store: Store, folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, nth: int
) -> None:
    folder.parent.mkdir()
    with monkeypatch.context() as patch:
        calls = fail_nth_call(patch, name, nth, errno.ENOSPC)
        with pytest.raises(CheckpointError) as raised:
            store.write(RECORD)
        assert len(calls) >= nth
    assert isinstance(raised.value.__cause__, OSError)
    assert raised.value.__cause__.errno == errno.ENOSPC
    assert f" to {folder}: " in str(raised.value), "an operator has to know which disk it is"
    assert not folder.exists() or names(folder) == []
    store.write(RECORD)
    assert store.read(ID) == RECORD


@pytest.mark.parametrize(
    ("name", "nth", "content"),
    [
        pytest.param("open", 1, "old", id="folder-not-opened"),
        pytest.param("open", 2, "old", id="temporary-file-not-made"),
        pytest.param("write", 1, "old", id="disk-full"),
        pytest.param("fsync", 1, "old", id="file-not-synced"),
        pytest.param("rename", 1, "old", id="not-renamed"),
        pytest.param("fsync", 2, "new", id="folder-not-synced"),
    ],
)
def test_a_replacement_that_fails_leaves_one_whole_content(
    store: Store, folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, nth: int, content: str
) -> None:
    store.write(replace(RECORD, log_directory="old"))
    with monkeypatch.context() as patch:
        fail_nth_call(patch, name, nth, errno.EIO)
        with pytest.raises(CheckpointError):
            store.write(replace(RECORD, log_directory="new"))
    assert names(folder) == [ID]
    assert store.read(ID).log_directory == content


def test_a_short_write_is_continued(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, content: real(descriptor, content[:7]))
    store.write(RECORD)
    assert store.read(ID) == RECORD


def test_a_real_full_disk_is_reported(store: Store, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """/dev/full answers every write with ENOSPC, as the kernel does on a full file system."""
    folder.mkdir(parents=True)
    real = os.open

    def to_full(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if flags & os.O_CREAT:
            os.close(real(path, flags, mode, dir_fd=dir_fd))
            return real("/dev/full", os.O_WRONLY)
        return real(path, flags, mode, dir_fd=dir_fd)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", to_full)
        with pytest.raises(CheckpointError, match="No space left"):
            store.write(RECORD)
    assert names(folder) == []


def test_no_descriptor_is_left_open_by_failures(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.write(RECORD)
    before = len(descriptors())
    for name in FAILING_CALLS[1:]:
        for nth in (1, 2):
            with monkeypatch.context() as patch:
                fail_nth_call(patch, name, nth, errno.EIO)
                with contextlib.suppress(CheckpointError):
                    store.write(RECORD)
    assert len(descriptors()) == before


# -- what may lie in the folder


def lay(folder: Path, name: str, content: bytes) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_bytes(content)
    return path


def test_a_damaged_file_is_set_aside_and_reported_once(store: Store, folder: Path) -> None:
    store.write(RECORD)
    lay(folder, OTHER, b'{"version":"v1","na')
    checkpoints, problems = store.load_all()
    assert checkpoints == [RECORD]
    (problem,) = problems
    assert problem.file_name == OTHER
    assert isinstance(problem.error, DamagedCheckpoint)
    assert problem.set_aside is not None
    assert problem.set_aside.parent == folder.parent / "damaged"
    assert problem.set_aside.read_bytes() == b'{"version":"v1","na'
    assert store.damaged() == 1
    assert store.load_all() == ([RECORD], [])


def test_two_damaged_files_of_one_name_are_both_kept(store: Store, folder: Path) -> None:
    for content in (b"first", b"second"):
        lay(folder, OTHER, content)
        store.load_all()
    kept = {path.read_bytes() for path in (folder.parent / "damaged").iterdir()}
    assert kept == {b"first", b"second"}


def test_a_newer_file_is_reported_and_left(store: Store, folder: Path) -> None:
    path = lay(folder, ID, b'{"version":"v2"}')
    with pytest.raises(NewerCheckpoint):
        store.read(ID)
    checkpoints, problems = store.load_all()
    assert checkpoints == []
    assert isinstance(problems[0].error, NewerCheckpoint)
    assert problems[0].set_aside is None
    assert path.exists()


def test_a_file_that_cannot_be_read_is_reported_and_left(
    store: Store, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.write(RECORD)
    with monkeypatch.context() as patch:
        fail_nth_call(patch, "read", 1, errno.EIO)
        checkpoints, problems = store.load_all()
    assert checkpoints == []
    assert "Input/output error" in str(problems[0].error)
    assert store.read(ID) == RECORD


def test_a_damaged_file_that_cannot_be_moved_is_reported_where_it_is(
    store: Store, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = lay(folder, ID, b"x")
    with monkeypatch.context() as patch:
        fail_nth_call(patch, "rename", 1, errno.EROFS)
        _, problems = store.load_all()
    assert problems[0].set_aside is None
    assert any("Read-only" in note for note in problems[0].error.__notes__)
    assert path.exists()


def make_fifo(path: Path) -> None:
    os.mkfifo(path)


def make_folder(path: Path) -> None:
    path.mkdir()
    (path / "file").write_text("x")


def make_socket(path: Path) -> None:
    # A path of 64 digits and more does not fit into a socket address; the name relative to its folder does.
    descriptor = os.open(path.parent, os.O_RDONLY)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"/proc/self/fd/{descriptor}/{path.name}")
    os.close(descriptor)


def make_link_to_a_checkpoint(path: Path) -> None:
    target = path.parent.parent / "elsewhere"
    target.write_bytes(encode(RECORD))
    path.symlink_to(target)


def make_dangling_link(path: Path) -> None:
    path.symlink_to("/nonexistent")


def make_link_loop(path: Path) -> None:
    path.symlink_to(path.name)


def make_huge(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(MAXIMUM_SIZE + 1)


HOSTILE = [
    pytest.param(make_fifo, id="fifo-without-a-writer"),
    pytest.param(make_folder, id="folder"),
    pytest.param(make_socket, id="socket"),
    pytest.param(make_link_to_a_checkpoint, id="link-to-a-checkpoint-outside"),
    pytest.param(make_dangling_link, id="dangling-link"),
    pytest.param(make_link_loop, id="link-to-itself"),
    pytest.param(make_huge, id="larger-than-the-bound"),
]


@pytest.mark.timeout(10)
@pytest.mark.parametrize("make", HOSTILE)
def test_what_is_not_a_checkpoint_file_is_damaged_and_set_aside(
    store: Store, folder: Path, make: Callable[[Path], None]
) -> None:
    folder.mkdir(parents=True)
    make(folder / ID)
    with pytest.raises(DamagedCheckpoint):
        store.read(ID)
    checkpoints, problems = store.load_all()
    assert checkpoints == []
    assert isinstance(problems[0].error, DamagedCheckpoint)
    assert names(folder) == []
    assert len(names(folder.parent / "damaged")) == 1


def test_a_file_of_another_user_is_damaged(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.write(RECORD)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(DamagedCheckpoint, match="owned by user"):
        store.read(ID)


def test_a_write_replaces_a_link_and_not_what_it_names(store: Store, folder: Path) -> None:
    folder.mkdir(parents=True)
    make_link_to_a_checkpoint(folder / ID)
    store.write(replace(RECORD, log_directory="new"))
    assert not (folder / ID).is_symlink()
    assert b"new" not in (folder.parent / "elsewhere").read_bytes()


def test_removing_a_link_leaves_what_it_names(store: Store, folder: Path) -> None:
    folder.mkdir(parents=True)
    make_link_to_a_checkpoint(folder / ID)
    store.remove(ID)
    assert everything_under(folder.parent) == ["elsewhere", "sandbox"]


def test_a_folder_that_is_a_link_is_not_entered(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (tmp_path / "sandbox").symlink_to(outside)
    store = Store(tmp_path / "sandbox")
    with pytest.raises(CheckpointError):
        store.write(RECORD)
    with pytest.raises(CheckpointError):
        store.load_all()
    assert names(outside) == []


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(b"\xff\xfe", id="not-utf-8"),
        pytest.param(b"white space", id="white-space"),
        pytest.param("ä".encode() * 127, id="as-long-as-a-name-can-be"),
    ],
)
def test_a_file_name_that_is_no_id_is_set_aside(store: Store, folder: Path, name: bytes) -> None:
    folder.mkdir(parents=True)
    (folder / os.fsdecode(name)).write_bytes(encode(RECORD))
    checkpoints, problems = store.load_all()
    assert checkpoints == []
    assert isinstance(problems[0].error, InvalidSandboxId)
    assert problems[0].set_aside is not None
    assert problems[0].set_aside.exists()


def test_our_leftovers_of_a_crash_go_and_hidden_files_of_others_stay(store: Store, folder: Path) -> None:
    store.write(RECORD)
    lay(folder, f".tmp-{OTHER}-01234567", b'{"ver')
    lay(folder, ".other", b"x")
    assert store.load_all() == ([RECORD], [])
    assert names(folder) == [".other", ID]


@pytest.mark.timeout(30)
def test_listing_does_not_disturb_a_write_that_is_under_way(
    store: Store, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.mkdir(parents=True)
    real = os.fsync
    reached, go_on = threading.Event(), threading.Event()

    def waits(descriptor: int) -> None:
        reached.set()
        assert go_on.wait(10)
        real(descriptor)

    monkeypatch.setattr(os, "fsync", waits)
    writer = threading.Thread(target=store.write, args=(RECORD,))
    writer.start()
    assert reached.wait(10)
    assert store.load_all() == ([], [])
    go_on.set()
    writer.join()
    assert store.read(ID) == RECORD


@pytest.mark.timeout(30)
def test_many_threads_write_and_remove_at_once(store: Store, folder: Path) -> None:
    failures: list[Exception] = []

    def churn(number: int) -> None:
        try:
            record = replace(RECORD, sandbox_id=f"{number:064x}")
            for _ in range(5):
                store.write(record)
                assert store.read(record.sandbox_id) == record
                store.remove(record.sandbox_id)
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=churn, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert names(folder) == []


def test_a_killed_writer_leaves_a_whole_file_or_none(store: Store, folder: Path) -> None:
    """Dies, without any clean-up, at every system call of a write in turn."""
    folder.mkdir(parents=True)
    for name in FAILING_CALLS[1:]:
        for nth in (1, 2):
            child = os.fork()
            if child == 0:
                die_at_nth_call(name, nth)
                store.write(RECORD)
                os._exit(0)
            os.waitpid(child, 0)
            checkpoints, problems = Store(folder).load_all()
            assert problems == []
            assert checkpoints in ([], [RECORD])
            assert set(names(folder)) <= {ID}
            store.remove(ID)


def die_at_nth_call(name: str, nth: int) -> None:
    real = getattr(os, name)
    calls: list[int] = []

    def dies(*arguments: Any, **keywords: Any) -> Any:
        calls.append(1)
        if len(calls) == nth:
            os._exit(9)
        return real(*arguments, **keywords)

    setattr(os, name, dies)
