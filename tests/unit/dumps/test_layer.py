"""The archive of a writable layer: whatever a container has made there."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import tarfile
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dockershim.dumps import layer
from dockershim.dumps.layer import write_layer
from dockershim.dumps.problems import Kind, Problem

FILE_NAMES = st.binary(min_size=1, max_size=120).filter(lambda name: b"/" not in name and b"\0" not in name)


@pytest.fixture
def upper(tmp_path: Path) -> Path:
    folder = tmp_path / "upper"
    folder.mkdir()
    return folder


def written(upper: Path, *hidden: str) -> tuple[dict[str, tarfile.TarInfo], list[str]]:
    """The members of the archive by name, and the deleted paths."""
    target = upper.parent / "layer.tar"
    deleted = write_layer(str(upper), str(target), hidden)
    with tarfile.open(target) as archive:
        return {member.name: member for member in archive}, deleted


def white_out(path: Path) -> None:
    os.mknod(path, stat.S_IFCHR, os.makedev(0, 0))


def test_files_keep_their_content_owner_mode_and_time(upper: Path) -> None:
    (upper / "folder").mkdir(mode=0o711)
    file = upper / "folder" / "file"
    file.write_text("content")
    file.chmod(0o4755)
    os.utime(file, (1, 1234567890))
    members, deleted = written(upper)
    assert list(members) == ["folder", "folder/file"]
    assert members["folder"].mode == 0o711
    found = members["folder/file"]
    assert (found.mode, found.mtime, found.uid, found.size) == (0o4755, 1234567890, os.getuid(), 7)
    with tarfile.open(upper.parent / "layer.tar") as archive:
        content = archive.extractfile("folder/file")
        assert content is not None
        assert content.read() == b"content"
    assert deleted == []


def test_deleted_files_are_told_and_not_archived(upper: Path) -> None:
    (upper / "etc").mkdir()
    white_out(upper / "etc" / "passwd")
    white_out(upper / "bin")
    members, deleted = written(upper)
    assert (list(members), deleted) == (["etc"], ["/bin", "/etc/passwd"])


def test_what_mounts_cover_is_left_out(upper: Path) -> None:
    (upper / "etc").mkdir()
    (upper / "etc/hosts").touch()
    (upper / "etc/hosts2").touch()
    (upper / "volume/below").mkdir(parents=True)
    white_out(upper / "proc")
    members, deleted = written(upper, "/etc/hosts", "/volume", "/proc")
    assert (list(members), deleted) == (["etc", "etc/hosts2"], [])


def test_links_are_archived_and_never_followed(upper: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("of the node")
    (upper / "file").symlink_to(tmp_path / "secret")
    (upper / "folder").symlink_to(tmp_path)
    (upper / "one").touch()
    (upper / "two").hardlink_to(upper / "one")
    members, _ = written(upper)
    assert list(members) == ["file", "folder", "one", "two"]
    assert [members[name].linkname for name in members] == [str(tmp_path / "secret"), str(tmp_path), "", "one"]
    assert members["two"].islnk()


def test_a_link_that_takes_the_place_of_a_file_is_not_followed(
    upper: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "secret").write_text("of the node")
    (upper / "file").write_text("own")

    def swap(*_: object) -> None:
        (upper / "file").unlink()
        (upper / "file").symlink_to(tmp_path / "secret")

    opened = layer._opened

    def after_a_swap(name: str, here: int, inode: tuple[int, int]) -> object:
        swap()
        return opened(name, here, inode)

    monkeypatch.setattr(layer, "_opened", after_a_swap)
    with pytest.raises(OSError, match="symbolic links"):
        write_layer(str(upper), str(tmp_path / "layer.tar"))
    assert b"of the node" not in (tmp_path / "layer.tar").read_bytes()


def test_pipes_are_archived_and_not_opened_and_sockets_are_left_out(
    upper: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(upper / "pipe")
    # The path of a socket may have 107 bytes.
    monkeypatch.chdir(upper)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("socket")
        members, _ = written(upper)
    assert list(members) == ["pipe"]
    assert members["pipe"].isfifo()


def test_attributes_that_belong_to_a_file_are_kept(upper: Path) -> None:
    (upper / "file").touch()
    os.setxattr(upper / "file", "user.name", b"v\xffalue")
    members, _ = written(upper)
    headers = members["file"].pax_headers
    assert headers["SCHILY.xattr.user.name"].encode("utf-8", "surrogateescape") == b"v\xffalue"


@pytest.mark.parametrize("name", [b"user.\xff", b"user.a=b"])
def test_attributes_that_an_archive_cannot_name_are_left_out(upper: Path, name: bytes) -> None:
    (upper / "file").touch()
    os.setxattr(upper / "file", name, b"value")
    members, _ = written(upper)
    assert members["file"].pax_headers == {}


def test_many_files_cost_no_memory(upper: Path) -> None:
    for number in range(200):
        (upper / str(number)).touch()
        os.setxattr(upper / str(number), "user.name", b"%3000d" % number)
    tracemalloc.start()
    try:
        write_layer(str(upper), str(upper.parent / "layer.tar"))
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 300_000


def test_a_file_that_only_says_to_be_large_does_not_fill_the_disk(upper: Path) -> None:
    with (upper / "sparse").open("wb") as file:
        file.truncate(1 << 43)
    with pytest.raises(Problem, match="'/sparse': 8796093022208 bytes do not fit") as failure:
        written(upper)
    assert failure.value.kind == Kind.FULL
    assert (upper.parent / "layer.tar").stat().st_size < 1 << 20


def test_folders_without_end_are_refused(upper: Path) -> None:
    try:
        here = os.open(upper, os.O_RDONLY)
        for _ in range(1500):
            os.mkdir("d", dir_fd=here)
            below = os.open("d", os.O_RDONLY, dir_fd=here)
            os.close(here)
            here = below
        os.close(here)
        with pytest.raises(Problem, match="nested too deeply"):
            written(upper)
    finally:
        # pytest removes the folders of earlier tests, and could not remove this one.
        subprocess.run(["rm", "-rf", str(upper)], check=True)


@given(names=st.sets(FILE_NAMES, min_size=1, max_size=5))
def test_any_name_comes_back(tmp_path_factory: pytest.TempPathFactory, names: set[bytes]) -> None:
    upper = tmp_path_factory.mktemp("names") / "upper"
    upper.mkdir()
    for name in names - {b".", b".."}:
        (upper / os.fsdecode(name)).touch()
    members, deleted = written(upper)
    assert ({os.fsencode(name) for name in members}, deleted) == (names - {b".", b".."}, [])
