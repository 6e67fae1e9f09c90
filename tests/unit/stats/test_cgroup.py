"""Cgroup files of both versions: the parsers on samples, and the way from a process to its files in sample trees."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from dockershim.cgroups import MOST_CGROUPS
from dockershim.stats.cgroup import (
    Budget,
    Device,
    Files,
    Group,
    HugePages,
    Pressure,
    Stall,
    Usage,
    find_group,
    parse_details_v1,
    parse_details_v2,
    parse_pressure,
    parse_usage_v1,
    parse_usage_v2,
    read_huge_pages,
)
from tests.processes import descriptors
from tests.unit.stats.cgroup_trees import USAGE, V1

ID = "0f720b0a29b4c604f60bb8e5982482277226baee719208ed6ac741cc8949424e"
POD = "pod2ad4c7f0"
PID = 4242

V2 = {
    "cpu.stat": (
        "usage_usec 123456\nuser_usec 100000\nsystem_usec 20000\ncore_sched.force_idle_usec 0\nnr_periods 40\n"
        "nr_throttled 3\nthrottled_usec 250000\nnr_bursts 0\nburst_usec 0\n"
    ),
    "memory.current": "1048576\n",
    "memory.max": "67108864\n",
    "memory.swap.current": "4096\n",
    "memory.swap.max": "33554432\n",
    "memory.peak": "2097152\n",
    "memory.events": "low 0\nhigh 0\nmax 7\noom 3\noom_kill 2\noom_group_kill 0\n",
    "memory.stat": (
        "anon 208896\nfile 700416\nkernel 139264\nkernel_stack 16384\nslab 100000\npercpu 20000\nsock 2880\n"
        "file_mapped 4096\ninactive_file 270336\nactive_file 8192\npgfault 1234\npgmajfault 5\n"
    ),
    "pids.current": "3\n",
    "pids.max": "100\n",
    "io.stat": "8:0 rbytes=4096 wbytes=8192 rios=1 wios=2 dbytes=0 dios=0\n8:16 \n",
}
PRESSURE = {
    "cpu.pressure": (
        "some avg10=1.50 avg60=0.25 avg300=0.05 total=3813\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=1795\n"
    ),
    "memory.pressure": (
        "some avg10=0.00 avg60=0.00 avg300=0.00 total=1\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n"
    ),
    "io.pressure": ("some avg10=0.00 avg60=0.00 avg300=0.00 total=2\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=2\n"),
}


# -- parsers


def test_both_versions_say_the_same_of_usage() -> None:
    assert parse_usage_v1(V1) == USAGE
    assert parse_usage_v2(V2) == replace(USAGE, cpu=123456000)


def test_both_versions_say_the_same_of_details() -> None:
    v1, v2 = parse_details_v1(V1), parse_details_v2(V2)
    (one,), (other,) = v1.devices, v2.devices
    assert replace(v1, devices=()) == replace(v2, devices=())
    assert (v1.cpu_user, v1.cpu_system) == (100_000_000, 20_000_000)
    assert (v1.periods, v1.throttled_periods, v1.throttled) == (40, 3, 250_000_000)
    assert (v1.limit_hits, v1.oom_kills, v1.threads, v1.threads_limit) == (7, 2, 3, 100)
    assert (v1.highest_memory, v1.kernel_memory) == (2097152, 139264)
    assert other == Device("8:0", {"read": 4096, "write": 8192, "discard": 0}, {"read": 1, "write": 2, "discard": 0})
    assert {name: one.bytes[name] for name in other.bytes} == other.bytes
    assert {name: one.operations[name] for name in other.operations} == other.operations
    assert one.number == other.number


def test_the_working_set_leaves_out_inactive_page_cache_and_is_never_negative() -> None:
    assert USAGE.working_set == 1048576 - 270336
    assert replace(USAGE, inactive_file=99999999).working_set == 0


@pytest.mark.parametrize(
    "usage",
    [
        pytest.param(
            parse_usage_v1(
                {
                    **V1,
                    "memory.stat": (
                        "hierarchical_memory_limit 9223372036854771712\nhierarchical_memsw_limit 9223372036854771712\n"
                    ),
                }
            ),
            id="v1: a huge number",
        ),
        pytest.param(parse_usage_v2({**V2, "memory.max": "max\n", "memory.swap.max": "max\n"}), id="v2: the word max"),
    ],
)
def test_no_limit(usage: Usage) -> None:
    assert (usage.memory_limit, usage.swap_limit) == (None, None)


@pytest.mark.parametrize(
    "usage",
    [
        pytest.param(
            parse_usage_v1({**V1, "memory.stat": "total_rss 1\nhierarchical_memory_limit 67108864\n"}), id="v1"
        ),
        pytest.param(parse_usage_v2({**V2, "memory.swap.current": "", "memory.swap.max": ""}), id="v2"),
    ],
)
def test_a_kernel_that_does_not_account_for_swap(usage: Usage) -> None:
    assert (usage.swap, usage.swap_limit) == (None, None)


def test_no_swap_is_a_limit_of_nothing() -> None:
    stat = V1["memory.stat"].replace("hierarchical_memsw_limit 100663296", "hierarchical_memsw_limit 67108864")
    assert parse_usage_v1({**V1, "memory.stat": stat}).swap_limit == 0
    assert parse_usage_v2({**V2, "memory.swap.max": "0\n"}).swap_limit == 0


def test_kernel_memory_before_its_sum_was_told() -> None:
    stat = V2["memory.stat"].replace("kernel 139264\n", "")
    assert parse_details_v2({**V2, "memory.stat": stat}).kernel_memory == 139264


@pytest.mark.parametrize("missing", sorted(set(V1) - {"cpuacct.usage", "memory.usage_in_bytes", "memory.stat"}))
def test_v1_without_a_file(missing: str) -> None:
    parse_usage_v1({**V1, missing: ""})
    parse_details_v1({**V1, missing: ""})


@pytest.mark.parametrize("missing", sorted(set(V2) - {"cpu.stat", "memory.current", "memory.stat"}))
def test_v2_without_a_file(missing: str) -> None:
    parse_usage_v2({**V2, missing: ""})
    parse_details_v2({**V2, missing: ""})


@pytest.mark.parametrize(
    ("text", "pressure"),
    [
        pytest.param(
            PRESSURE["cpu.pressure"], Pressure(Stall(3813, 1.5, 0.25, 0.05), Stall(1795, 0, 0, 0)), id="both lines"
        ),
        pytest.param(
            PRESSURE["cpu.pressure"].splitlines()[0], Pressure(Stall(3813, 1.5, 0.25, 0.05), None), id="older kernel"
        ),
        pytest.param("", None, id="no pressure"),
    ],
)
def test_pressure(text: str, pressure: Pressure | None) -> None:
    assert parse_pressure(text) == pressure


# -- trees of both versions, by both drivers

PATHS = {"cgroupfs": f"/kubepods/burstable/{POD}/{ID}", "systemd": f"/kubepods.slice/{POD}.slice/docker-{ID}.scope"}
CONTROLLERS = {
    "cpuacct": "cpu,cpuacct",
    "cpu": "cpu,cpuacct",
    "memory": "memory",
    "pids": "pids",
    "blkio": "blkio",
    "hugetlb": "hugetlb",
}


def write(folder: Path, files: dict[str, str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text)


def write_at(folder: int, name: str, text: str) -> None:
    fd = os.open(name, os.O_WRONLY | os.O_CREAT, dir_fd=folder)
    os.write(fd, text.encode())
    os.close(fd)


def make_tree(tmp_path: Path, version: int, path: str, *, pressure: bool) -> None:
    """The files of a container at ``path``, and the same of the pod around it."""
    proc, root = tmp_path / "proc" / str(PID), tmp_path / "cgroup"
    for below in (path, path.rpartition("/")[0]):
        if version == 2:
            write(root / below[1:], V2 | PRESSURE)
            continue
        for name, text in V1.items():
            write(root / CONTROLLERS[name.split(".")[0]] / below[1:], {name: text})
        if pressure:
            write(root / "unified" / below[1:], PRESSURE)
    mounts = sorted(set(CONTROLLERS.values()))
    lines = [] if version == 2 else [f"{number}:{name}:{path}" for number, name in enumerate(mounts, 2)]
    lines += [f"1:name=systemd:{path}"] if version == 1 else []
    lines += [f"0::{path}"] if version == 2 or pressure else []
    write(proc, {"cgroup": "\n".join(lines) + "\n"})


def move(tmp_path: Path, before: str, after: str) -> None:
    """The container's first process moves, in the hierarchies that have this text."""
    file = tmp_path / "proc" / str(PID) / "cgroup"
    file.write_bytes(file.read_bytes().replace(before.encode(), os.fsencode(after)))


#: A container that may make cgroups names them; what is no UTF-8 is as in ``os.fsdecode``.
BELOW = ["", "/init", f"/docker/{ID}/init.scope", "/\udcff", "/a:b", "/\x1c1:memory:/", "/\u2028\x85\r0::/b", "/a b"]


@pytest.mark.parametrize("below", BELOW)
@pytest.mark.parametrize("driver", sorted(PATHS))
@pytest.mark.parametrize(
    ("version", "pressure"),
    [
        pytest.param(1, False, id="v1"),
        pytest.param(1, True, id="v1 with the v2 hierarchy beside it"),
        pytest.param(2, True, id="v2"),
    ],
)
def test_a_container_and_its_pod_are_found_and_read(
    tmp_path: Path, version: int, pressure: bool, driver: str, below: str
) -> None:
    make_tree(tmp_path, version, PATHS[driver], pressure=pressure)
    move(tmp_path, PATHS[driver], PATHS[driver] + below)
    group = find_group(PID, ID, root=tmp_path / "cgroup", proc=tmp_path / "proc")
    assert (group.path, group.version) == (PATHS[driver], version)
    for one in (group, group.parent()):
        # With no file kept open, with some, and with all.
        for budget in (Budget(0), Budget(2), Budget(100)):
            files = Files(one, budget)
            for _ in range(2):
                usage, details = files.everything()
                assert files.usage() == usage
                assert usage.memory == USAGE.memory
                assert details.oom_kills == 2
                assert (usage.io_pressure is not None) == pressure
            files.close()
    assert group.parent().path == PATHS[driver].rpartition("/")[0]


def test_a_process_that_has_got_the_number_of_the_containers(tmp_path: Path) -> None:
    make_tree(tmp_path, 1, PATHS["cgroupfs"], pressure=False)
    with pytest.raises(ProcessLookupError):
        find_group(PID, "f" * 64, root=tmp_path / "cgroup", proc=tmp_path / "proc")


@pytest.mark.parametrize("hierarchy", ["memory", "cpu,cpuacct"])
def test_a_container_that_has_left_what_accounts_for_it(tmp_path: Path, hierarchy: str) -> None:
    """What is counted there is not its own: the node's, at the root."""
    make_tree(tmp_path, 1, PATHS["cgroupfs"], pressure=True)
    move(tmp_path, f"{hierarchy}:{PATHS['cgroupfs']}", f"{hierarchy}:/")
    with pytest.raises(FileNotFoundError):
        Files(find_group(PID, ID, root=tmp_path / "cgroup", proc=tmp_path / "proc"), Budget(0)).usage()


@pytest.mark.parametrize("hierarchy", ["pids", "blkio", ""])
def test_other_hierarchies_that_it_has_left_or_never_was_in_are_left_out(tmp_path: Path, hierarchy: str) -> None:
    """An engine with a v1 driver may put nothing into the v2 hierarchy: the process is where the engine is."""
    make_tree(tmp_path, 1, PATHS["cgroupfs"], pressure=True)
    write(tmp_path / "cgroup" / (hierarchy or "unified"), V1 | PRESSURE | {"cgroup.procs": "1\n"})
    move(tmp_path, f":{hierarchy}:{PATHS['cgroupfs']}", f":{hierarchy}:/")
    files = Files(find_group(PID, ID, root=tmp_path / "cgroup", proc=tmp_path / "proc"), Budget(0))
    usage, details = files.everything()
    assert usage.memory == USAGE.memory
    assert (usage.io_pressure is None) == (hierarchy == "")
    assert (details.threads == 0) == (hierarchy == "pids")
    assert (details.devices == ()) == (hierarchy == "blkio")


def test_a_container_that_has_ended(tmp_path: Path) -> None:
    make_tree(tmp_path, 2, PATHS["systemd"], pressure=True)
    files = Files(find_group(PID, ID, root=tmp_path / "cgroup", proc=tmp_path / "proc"), Budget(100))
    for path in (tmp_path / "cgroup" / PATHS["systemd"][1:]).iterdir():
        path.unlink()
    with pytest.raises(FileNotFoundError):
        files.usage()
    assert files.processes() == []
    with pytest.raises(FileNotFoundError):
        find_group(1, ID, root=tmp_path / "cgroup", proc=tmp_path / "proc")


def test_a_node_that_accounts_for_no_memory(tmp_path: Path) -> None:
    write(tmp_path / str(PID), {"cgroup": f"3:cpu:{PATHS['cgroupfs']}\n"})
    with pytest.raises(FileNotFoundError):
        find_group(PID, ID, root=tmp_path, proc=tmp_path)


def test_processes_of_a_cgroup_and_of_those_below_it(tmp_path: Path) -> None:
    write(tmp_path, {"cgroup.procs": "1\n2\n"})
    write(tmp_path / "init.scope", {"cgroup.procs": "3\n"})
    write(tmp_path / "system.slice/a.service", {"cgroup.procs": "\n".join(map(str, range(4, 9004))) + "\n"})
    write(tmp_path / "system.slice", {"cgroup.procs": ""})
    for budget in (Budget(0), Budget(1)):
        files = Files(Group("/", 2, {"memory": str(tmp_path), "pids": str(tmp_path)}, ""), budget)
        assert sorted(files.processes()) == list(range(1, 9004))
        (tmp_path / "cgroup.procs").write_text("\n".join(map(str, range(10_000, 40_000))) + "\n")
        assert len(files.processes()) == 30_000 + 9001
        write(tmp_path, {"cgroup.procs": "1\n2\n"})
        files.close()


@pytest.fixture
def bottomless(tmp_path: Path) -> Iterator[Path]:
    """A folder that may become deeper than Python's rmtree can go, by which pytest clears its folders later."""
    yield tmp_path
    subprocess.run(["rm", "-rf", tmp_path], check=True)


def test_a_thousand_cgroups_in_each_other(bottomless: Path) -> None:
    """As deep as a container likes to have them, until they have no path any more."""
    fd = os.open(bottomless, os.O_RDONLY)
    for number in range(2100):
        write_at(fd, "cgroup.procs", f"{number}\n")
        os.mkdir("c", dir_fd=fd)
        below = os.open("c", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = below
    os.close(fd)
    files = Files(Group("/", 2, {"memory": str(bottomless)}, ""), Budget(0))
    found = files.processes()
    assert found == list(range(len(found)))
    assert 1000 < len(found) <= MOST_CGROUPS + 1


def test_no_more_cgroups_are_looked_at_than_take_a_moment(tmp_path: Path) -> None:
    for number in range(MOST_CGROUPS + 500):
        write(tmp_path / f"c{number}", {"cgroup.procs": f"{number + 2}\n"})
    write(tmp_path, {"cgroup.procs": "1\n"})
    files = Files(Group("/", 2, {"memory": str(tmp_path)}, ""), Budget(0))
    assert len(files.processes()) == MOST_CGROUPS + 1


def test_files_are_given_back(tmp_path: Path) -> None:
    make_tree(tmp_path, 2, PATHS["systemd"], pressure=True)
    budget = Budget(100)
    files = Files(find_group(PID, ID, root=tmp_path / "cgroup", proc=tmp_path / "proc"), budget)
    before = len(descriptors())
    files.everything()
    assert budget.left == 100 - (len(descriptors()) - before) < 100
    files.close()
    assert (budget.left, len(descriptors())) == (100, before)
    assert files.usage().memory == USAGE.memory
    files.close()


def test_details_are_read_when_something_has_run_and_every_ten_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    make_tree(tmp_path, 2, PATHS["systemd"], pressure=True)
    folder = tmp_path / "cgroup" / PATHS["systemd"][1:]
    files = Files(find_group(PID, ID, root=tmp_path / "cgroup", proc=tmp_path / "proc"), Budget(100))

    def look() -> tuple[int, int]:
        usage, details = files.everything()
        return details.threads, len(files.processes_at(usage))

    def change(**content: int) -> None:
        write(folder, {name.replace("_", "."): f"{number}\n" for name, number in content.items()})

    assert look() == (3, 0)
    change(pids_current=4, cgroup_procs=1)
    assert look() == (3, 0), "nothing has run"
    change(memory_current=5)
    assert look() == (4, 1)
    change(pids_current=5)
    now[0] += 9.9
    assert look() == (4, 1)
    now[0] += 0.1
    assert look() == (5, 1)
    files.close()


@pytest.mark.parametrize("budget", [pytest.param(0, id="opened each time"), pytest.param(100, id="kept open")])
def test_what_says_the_same_is_not_made_anew(tmp_path: Path, budget: int) -> None:
    make_tree(tmp_path, 2, PATHS["systemd"], pressure=True)
    folder = tmp_path / "cgroup" / PATHS["systemd"][1:]
    files = Files(find_group(PID, ID, root=tmp_path / "cgroup", proc=tmp_path / "proc"), Budget(budget))
    first = files.usage()
    assert files.usage() is first
    write(folder, {"memory.current": "5\n"})
    assert files.usage() == replace(first, memory=5)
    # A file that grows beyond what one reading takes is read to its end, and so ever after.
    for pages in (2, 3):
        write(folder, {"memory.stat": "filler 1\n" * 500 * pages + f"anon {pages}\n"})
        assert files.usage().rss == pages
    files.close()


def test_huge_pages(tmp_path: Path) -> None:
    sizes = ("1GB", "2MB")
    write(
        tmp_path,
        {
            "hugetlb.2MB.usage_in_bytes": "4194304\n",
            "hugetlb.2MB.max_usage_in_bytes": "6291456\n",
            "hugetlb.1GB.current": "0\n",
        },
    )
    folders = {"hugetlb": str(tmp_path)}
    assert read_huge_pages(Group("/", 1, folders, ""), sizes) == (HugePages("2MB", 4194304, 6291456),)
    assert read_huge_pages(Group("/", 2, folders, ""), sizes) == (HugePages("1GB", 0, None),)
    assert read_huge_pages(Group("/", 1, {}, ""), sizes) == ()
