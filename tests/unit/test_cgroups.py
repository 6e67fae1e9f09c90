"""Cgroup files of v1, hybrid and v2 nodes, on trees like theirs."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dockershim import cgroups
from dockershim.cgroups import (
    apply_files,
    cgroup_folder,
    is_process_of,
    limited_huge_pages,
    own_cgroup,
    own_memory,
    read_cgroups,
    set_oom_score,
)
from dockershim.errors import FailedPrecondition

PID = 4711
ID = "c0ffee"
PATH = f"/kubepods/burstable/pod1/{ID}"
V1 = f"11:hugetlb:{PATH}\n4:memory:{PATH}\n3:cpu,cpuacct:{PATH}\n1:name=systemd:/docker.service\n0::/docker.service\n"
V2 = f"0::{PATH}\n"


@dataclass(frozen=True, slots=True)
class Node:
    root: Path
    proc: Path

    def folder(self, controller: str) -> Path:
        return cgroup_folder(PID, ID, controller, root=self.root, proc=self.proc)

    def apply(self, files: dict[str, str]) -> None:
        apply_files(PID, ID, files, root=self.root, proc=self.proc)

    def make(self, path: str, content: str = "") -> Path:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
        return file

    def end(self) -> None:
        """The process ends: its folder goes."""
        (self.proc / str(PID) / "cgroup").unlink()
        (self.proc / str(PID)).rmdir()


def node(tmp_path: Path, cgroup: str) -> Node:
    made = Node(tmp_path / "cgroup", tmp_path / "proc")
    made.root.mkdir(parents=True)
    (made.proc / str(PID)).mkdir(parents=True)
    (made.proc / str(PID) / "cgroup").write_text(cgroup)
    return made


@pytest.fixture
def v1(tmp_path: Path) -> Node:
    made = node(tmp_path / "v1", V1)
    made.make(f"hugetlb{PATH}/hugetlb.2MB.limit_in_bytes", "9223372036854771712")
    made.make(f"memory{PATH}/memory.limit_in_bytes", "9223372036854771712")
    made.make("unified/docker.service/cgroup.controllers")
    return made


@pytest.fixture
def v2(tmp_path: Path) -> Node:
    made = node(tmp_path, V2)
    made.make("cgroup.controllers", "cpuset cpu io memory hugetlb pids\n")
    made.make(f"{PATH[1:]}/cgroup.controllers", "cpu memory hugetlb pids\n")
    for name in ("hugetlb.2MB.max", "memory.oom.group", "memory.swap.max"):
        made.make(f"{PATH[1:]}/{name}", "max")
    return made


@pytest.fixture
def v2_without_hugetlb(tmp_path: Path) -> Node:
    made = node(tmp_path, V2)
    made.make("cgroup.controllers", "cpu memory\n")
    made.make(f"{PATH[1:]}/cgroup.controllers", "cpu memory\n")
    return made


@pytest.mark.parametrize("name", [b"\xff", b"a:b", b"\x1c4:memory:", "\u20284:memory:/\r\x85".encode(), b" \t"])
def test_cgroups_that_a_container_has_named(v1: Node, v2: Node, name: bytes) -> None:
    for one, folder in ((v1, f"memory{PATH}"), (v2, PATH[1:])):
        file = one.proc / str(PID) / "cgroup"
        file.write_bytes(file.read_bytes().replace(PATH.encode(), PATH.encode() + b"/" + name))
        assert one.folder("memory") == one.root / folder
        assert os.fsencode(dict(read_cgroups(PID, proc=one.proc))["memory" if one is v1 else ""]).endswith(b"/" + name)


@given(st.binary())
def test_nothing_in_the_file_of_cgroups_is_an_error(content: bytes) -> None:
    with TemporaryDirectory() as folder:
        made = node(Path(folder), "")
        (made.proc / str(PID) / "cgroup").write_bytes(content)
        assert all(len(found) == 2 for found in read_cgroups(PID, proc=made.proc))
        with contextlib.suppress(FailedPrecondition, ProcessLookupError):
            made.folder("memory")


@pytest.mark.parametrize(
    ("controller", "expected"),
    [
        pytest.param("memory", f"memory{PATH}", id="a controller of its own mount"),
        pytest.param("cpuacct", f"cpu,cpuacct{PATH}", id="one that shares a mount"),
        pytest.param("hugetlb", f"hugetlb{PATH}", id="huge pages"),
    ],
)
def test_folders_of_v1_and_hybrid(v1: Node, controller: str, expected: str) -> None:
    assert v1.folder(controller) == v1.root / expected


@pytest.mark.parametrize("controller", ["memory", "hugetlb", "cgroup"])
def test_folders_of_v2(v2: Node, controller: str) -> None:
    assert v2.folder(controller) == v2.root / PATH[1:]


@pytest.mark.parametrize("controller", ["pids", "systemd"])
def test_a_controller_that_v1_has_not(v1: Node, controller: str) -> None:
    with pytest.raises(FailedPrecondition, match=r"cgroup controller .* is disabled"):
        v1.folder(controller)


def test_a_controller_that_v2_has_not(v2: Node) -> None:
    with pytest.raises(FailedPrecondition, match="cgroup controller 'rdma' is disabled"):
        v2.folder("rdma")


def test_a_controller_that_is_not_given_down_to_the_container(v2: Node) -> None:
    """The node has it, a parent does not hand it on: the container's folder has no files of it."""
    with pytest.raises(FailedPrecondition, match="cgroup controller 'io' is disabled"):
        v2.folder("io")


def test_a_path_with_a_colon(tmp_path: Path) -> None:
    made = node(tmp_path, f"4:memory:/a:b/{ID}\n")

    assert made.folder("memory") == made.root / f"memory/a:b/{ID}"


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        pytest.param(PATH, PATH, id="cgroupfs"),
        pytest.param(f"/pod1.slice/docker-{ID}.scope", f"/pod1.slice/docker-{ID}.scope", id="systemd"),
        pytest.param(f"{PATH}/init", PATH, id="moved below by its first process"),
        pytest.param(f"/pod1.slice/docker-{ID}.scope/init.scope", f"/pod1.slice/docker-{ID}.scope", id="systemd in it"),
        pytest.param(f"{PATH}/docker/{ID}", PATH, id="the same name further down"),
        pytest.param("/", None, id="the root"),
        pytest.param("/kubepods/burstable/pod1/decaf", None, id="another's"),
    ],
)
def test_the_cgroup_of_a_container_by_that_of_its_process(path: str, expected: str | None) -> None:
    assert own_cgroup(path, ID) == expected


@pytest.mark.parametrize(
    ("cgroup", "expected"),
    [
        pytest.param(V1, True, id="v1, where it is in some hierarchies"),
        pytest.param(V2, True, id="v2"),
        pytest.param(f"0::{PATH}/init.scope\n", True, id="below the container's cgroup"),
        pytest.param(V2.replace(ID, "decaf"), False, id="another container's"),
        pytest.param("0::/\n", False, id="the node's"),
        pytest.param("", False, id="of no cgroup"),
    ],
)
def test_whose_process_it_is(tmp_path: Path, cgroup: str, expected: bool) -> None:
    made = node(tmp_path, cgroup)
    assert is_process_of(PID, ID, proc=made.proc) is expected
    made.end()
    with pytest.raises(FileNotFoundError):
        is_process_of(PID, ID, proc=made.proc)


def test_files_are_written(v2: Node) -> None:
    v2.apply({"hugetlb.2MB.max": "0", "memory.oom.group": "1", "memory.swap.max": "0"})

    folder = v2.root / PATH[1:]
    assert (folder / "hugetlb.2MB.max").read_text() == "0"
    assert (folder / "memory.oom.group").read_text() == "1"
    assert (folder / "memory.swap.max").read_text() == "0"


def test_files_of_v1_are_written(v1: Node) -> None:
    v1.apply({"hugetlb.2MB.limit_in_bytes": "0"})

    assert (v1.root / f"hugetlb{PATH}/hugetlb.2MB.limit_in_bytes").read_text() == "0"


@pytest.mark.parametrize("name", ["hugetlb.2MB.limit_in_bytes", "hugetlb.2MB.max"])
def test_what_may_not_be_used_may_not_be_reserved_either(v1: Node, v2: Node, name: str) -> None:
    made, folder = (v2, PATH[1:]) if name.endswith("max") else (v1, f"hugetlb{PATH}")
    reserved = made.make(f"{folder}/{name.replace('2MB', '2MB.rsvd')}", "max")

    made.apply({name: "0"})
    assert ((made.root / folder / name).read_text(), reserved.read_text()) == ("0", "0")
    made.apply({reserved.name: "2097152", name: "0"})
    assert reserved.read_text() == "2097152", "what is asked for is not overwritten"


def test_a_name_from_a_label_leads_nowhere_else(v2: Node) -> None:
    elsewhere = v2.make("elsewhere", "untouched")
    with pytest.raises(FailedPrecondition, match="not a cgroup file"):
        v2.apply({"memory.x/../../../../../elsewhere": "1"})
    assert elsewhere.read_text() == "untouched"


def test_no_huge_pages_need_no_controller(v2_without_hugetlb: Node, tmp_path: Path) -> None:
    """A kubelet sends a limit of 0 for every page size of the node with every container."""
    v2_without_hugetlb.apply({"hugetlb.2MB.max": "0", "hugetlb.1GB.max": "0"})
    node(tmp_path / "v1", f"4:memory:{PATH}\n").apply({"hugetlb.2MB.limit_in_bytes": "0"})


def test_some_huge_pages_need_it(v2_without_hugetlb: Node) -> None:
    with pytest.raises(FailedPrecondition, match="cgroup controller 'hugetlb' is disabled"):
        v2_without_hugetlb.apply({"hugetlb.2MB.max": "2097152"})


def test_a_file_that_the_kernel_has_not(v2: Node) -> None:
    with pytest.raises(FailedPrecondition, match=r"cannot write '0' to the cgroup file memory\.zswap\.max"):
        v2.apply({"memory.zswap.max": "0"})
    assert not (v2.root / PATH[1:] / "memory.zswap.max").exists()


@pytest.mark.parametrize("version", [1, 2])
def test_limits_are_the_containers_where_its_first_process_has_moved(tmp_path: Path, version: int) -> None:
    made = node(tmp_path, (V1 if version == 1 else V2).replace(PATH, f"{PATH}/init"))
    name = "hugetlb.2MB.limit_in_bytes" if version == 1 else "hugetlb.2MB.max"
    folder = f"hugetlb{PATH}" if version == 1 else PATH[1:]
    if version == 2:
        made.make("cgroup.controllers", "hugetlb\n")
        made.make(f"{folder}/cgroup.controllers", "hugetlb\n")
    own, below = made.make(f"{folder}/{name}", "max"), made.make(f"{folder}/init/{name}", "max")

    made.apply({name: "0"})

    assert (own.read_text(), below.read_text()) == ("0", "max")


def test_a_process_that_has_got_the_number_of_the_containers_is_left_alone(tmp_path: Path) -> None:
    made = node(tmp_path, f"4:memory:/kubepods/burstable/pod1/decaf\n0::{PATH}\n")
    file = made.make("memory/kubepods/burstable/pod1/decaf/memory.oom.group", "0")
    oom_scores(made, "memory/kubepods/burstable/pod1/decaf", {"": [PID]})

    made.apply({"memory.oom.group": "1"})
    set_oom_score(PID, ID, 100, root=made.root, proc=made.proc)

    assert file.read_text() == "0"
    assert (made.proc / str(PID) / "oom_score_adj").read_text() == "0"


def test_a_container_that_has_ended_needs_no_limits(v2: Node) -> None:
    v2.end()

    v2.apply({"memory.oom.group": "1"})


def test_a_container_that_ends_between_two_files(v2: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a short init container does: a start that fails for it would be a start that succeeded."""

    def ending(path: Path, value: str) -> None:
        v2.end()
        raise FileNotFoundError(path)

    monkeypatch.setattr(cgroups, "_write", ending)

    v2.apply({"memory.oom.group": "1", "memory.swap.max": "0"})


def oom_scores(made: Node, folder: str, processes: dict[str, list[int]]) -> None:
    for path, pids in processes.items():
        made.make(f"{folder}{path}/cgroup.procs", "".join(f"{pid}\n" for pid in pids))
        for pid in pids:
            (made.proc / str(pid)).mkdir(exist_ok=True)
            (made.proc / str(pid) / "oom_score_adj").write_text("0")


def test_a_score_is_given_to_every_process(v1: Node) -> None:
    oom_scores(v1, f"memory{PATH}", {"": [PID, 5], "/child": [6], "/child/a/b": [7]})

    set_oom_score(PID, ID, -500, root=v1.root, proc=v1.proc)

    assert [(v1.proc / str(pid) / "oom_score_adj").read_text() for pid in (PID, 5, 6, 7)] == ["-500"] * 4


def test_a_score_passes_over_what_has_ended(v2: Node) -> None:
    oom_scores(v2, PATH[1:], {"": [PID, 5]})
    (v2.proc / "5" / "oom_score_adj").unlink()

    set_oom_score(PID, ID, 100, root=v2.root, proc=v2.proc)

    assert (v2.proc / str(PID) / "oom_score_adj").read_text() == "100"


def test_a_score_of_a_container_that_has_ended(v2: Node) -> None:
    v2.end()

    set_oom_score(PID, ID, 100, root=v2.root, proc=v2.proc)


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_huge_pages_that_can_be_limited(version: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    made: Node = request.getfixturevalue(version)
    pages = tmp_path / "hugepages"
    assert limited_huge_pages(made.root, pages) == []
    for size in ("1048576kB", "2048kB", "64kB"):
        (pages / f"hugepages-{size}").mkdir(parents=True)
    assert limited_huge_pages(made.root, pages) == ["64KB", "2MB", "1GB"]
    bare = tmp_path / "bare"
    bare.mkdir()
    assert limited_huge_pages(bare, pages) == []
    (bare / "cgroup.controllers").write_text("cpu memory\n")
    assert limited_huge_pages(bare, pages) == []


def test_the_memory_that_is_a_containers_alone(v1: Node, v2: Node) -> None:
    def of(one: Node) -> int:
        return own_memory(PID, ID, root=one.root, proc=one.proc)

    assert (of(v1), of(v2)) == (0, 0)
    v1.make(f"memory{PATH}/memory.stat", "cache 9\nrss 1\nswap 0\ntotal_cache 90\ntotal_rss 10\ntotal_swap 2\n")
    v2.make(f"{PATH[1:]}/memory.stat", "anon 30\nfile 900\nanon_thp 7\n")
    v2.make(f"{PATH[1:]}/memory.swap.current", "4\n")
    assert (of(v1), of(v2)) == (12, 34)
