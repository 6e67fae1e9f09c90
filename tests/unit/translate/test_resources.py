"""Resources: limits of the request as the engine's fields and as cgroup files, and back."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dockershim.api.cri.v1 import api_pb2 as cri
from dockershim.errors import InvalidArgument, Unsupported
from dockershim.translate.resources import (
    SWAP_FILE,
    check_resources,
    to_cgroup_files,
    to_cri_resources,
    to_engine_resources,
    to_oom_score,
    value_at_start,
)

MIB = 1 << 20


def resources(**fields: Any) -> cri.LinuxContainerResources:
    return cri.LinuxContainerResources(**fields)


def pages(size: str, limit: int = 0) -> list[cri.HugepageLimit]:
    return [cri.HugepageLimit(page_size=size, limit=limit)]


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        pytest.param({"cpu_period": -1}, "cpu_period", id="a negative period"),
        pytest.param({"cpu_quota": -2}, "cpu_quota", id="a quota below unlimited"),
        pytest.param({"cpu_shares": -1}, "cpu_shares", id="negative shares"),
        pytest.param({"memory_limit_in_bytes": -1}, "memory_limit_in_bytes", id="a negative limit"),
        pytest.param({"memory_swap_limit_in_bytes": -2}, "memory_swap_limit_in_bytes", id="swap below unlimited"),
        pytest.param({"oom_score_adj": 1001}, "oom_score_adj", id="a score above the kernel's"),
        pytest.param({"oom_score_adj": -1001}, "oom_score_adj", id="a score below the kernel's"),
        pytest.param({"unified": {"memory/../x.y": "1"}}, "unified", id="a file elsewhere"),
        pytest.param({"unified": {"memory": "1"}}, "unified", id="a controller alone"),
        pytest.param({"unified": {"memory.": "1"}}, "unified", id="a file without a name"),
        pytest.param({"unified": {"": "1"}}, "unified", id="no file"),
        pytest.param({"unified": {"memory.min\0": "1"}}, "unified", id="a NUL in a file's name"),
        pytest.param({"unified": {"memory.min": "1\n2"}}, "unified", id="two lines for one file"),
        pytest.param({"unified": {"memory.swap.max": "64M"}}, "unified", id="swap in another unit than the engine's"),
        pytest.param({"hugepage_limits": pages("")}, "hugepage_limits", id="not a valid page size"),
        pytest.param({"hugepage_limits": pages("../2MB")}, "hugepage_limits", id="a page size with a path"),
        pytest.param({"hugepage_limits": pages("2Mi")}, "hugepage_limits", id="a page size of another spelling"),
    ],
)
def test_what_cannot_be_is_refused(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidArgument, match=rf"^linux\.{field}") as caught:
        check_resources(resources(**fields), "linux")
    assert type(caught.value) is InvalidArgument


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({}, id="nothing set"),
        pytest.param({"cpu_quota": -1, "memory_swap_limit_in_bytes": -1}, id="unlimited"),
        pytest.param({"oom_score_adj": -1000}, id="the lowest score"),
        pytest.param({"hugepage_limits": pages("64KB"), "unified": {"hugetlb.2MB.rsvd.max": "0"}}, id="huge pages"),
        pytest.param({"unified": {"io.max": "8:0 rbps=1048576", "cpu.uclamp.min": "max"}}, id="files of cgroup v2"),
    ],
)
def test_what_can_be_is_taken(fields: dict[str, Any]) -> None:
    check_resources(resources(**fields), "linux")


@pytest.mark.parametrize(
    ("fields", "swap_limit", "expected"),
    [
        pytest.param({}, True, {}, id="nothing set: an update leaves all alone"),
        pytest.param({"cpuset_cpus": "0-1"}, True, {"CpusetCpus": "0-1"}, id="what a CPU manager sends"),
        pytest.param({"cpu_quota": -1}, True, {"CpuQuota": -1}, id="a quota that is taken away"),
        pytest.param(
            {"memory_limit_in_bytes": 64 * MIB}, True, {"Memory": 64 * MIB, "MemorySwap": 64 * MIB}, id="no swap"
        ),
        pytest.param(
            {"memory_limit_in_bytes": 64 * MIB, "memory_swap_limit_in_bytes": 96 * MIB},
            True,
            {"Memory": 64 * MIB, "MemorySwap": 96 * MIB},
            id="some swap",
        ),
        pytest.param(
            {"memory_limit_in_bytes": 64 * MIB, "memory_swap_limit_in_bytes": -1},
            True,
            {"Memory": 64 * MIB, "MemorySwap": -1},
            id="any swap",
        ),
        pytest.param({"memory_limit_in_bytes": 64 * MIB}, False, {"Memory": 64 * MIB}, id="swap cannot be limited"),
        pytest.param(
            {"memory_limit_in_bytes": 64 * MIB, "memory_swap_limit_in_bytes": 96 * MIB},
            False,
            {"Memory": 64 * MIB},
            id="swap is asked for but cannot be limited",
        ),
    ],
)
def test_fields_of_the_engine(fields: dict[str, Any], swap_limit: bool, expected: dict[str, Any]) -> None:
    assert to_engine_resources(resources(**fields), swap_limit=swap_limit) == expected


def with_swap(swap: str, memory: int = 0, both: int = 0) -> dict[str, Any]:
    fields = {"memory_limit_in_bytes": memory, "memory_swap_limit_in_bytes": both}
    return {**fields, **({"unified": {SWAP_FILE: swap}} if swap else {})}


@pytest.mark.parametrize(
    ("fields", "before", "expected"),
    [
        pytest.param(with_swap("0", 64), {}, (64, 64), id="none"),
        pytest.param(with_swap("32", 64), {}, (64, 96), id="some"),
        pytest.param(with_swap("max", 64), {}, (64, -1), id="any"),
        pytest.param(with_swap(str(2**63 - 1), 64), {}, (64, -1), id="more than the engine can count"),
        pytest.param(with_swap("32", 64, both=64), {}, (64, 96), id="unified has the last word"),
        pytest.param(with_swap("32"), {}, (None, None), id="without a limit of memory the engine takes none"),
        pytest.param(
            with_swap("32"), with_swap("", 64, 64), (None, 96), id="of a container that has a limit of memory"
        ),
        pytest.param(
            with_swap("", 128), with_swap("", 64, 96), (128, 160), id="another limit of memory, the same swap"
        ),
        pytest.param(with_swap("", 128), with_swap("", 64, -1), (128, -1), id="another limit of memory, any swap"),
        pytest.param(with_swap("", 128), with_swap("", 64, 64), (128, 128), id="another limit of memory, no swap"),
        pytest.param(with_swap("", 128), with_swap("32"), (128, 160), id="the first limit of memory, the same swap"),
        pytest.param(with_swap("", 128), with_swap(""), (128, -1), id="the first limit of memory, any swap"),
        pytest.param(with_swap("", 128), with_swap("junk"), (128, 128), id="what is no limit of swap"),
        pytest.param(with_swap("", 128, 130), with_swap("", 64, 96), (128, 130), id="another limit of both"),
        pytest.param(with_swap("", 0, -1), with_swap("", 64, 96), (None, 2**63 - 1), id="no limit of swap any more"),
        pytest.param(with_swap("max"), with_swap("", 64, 96), (None, 2**63 - 1), id="any swap from now on"),
        pytest.param(with_swap("max", 128), with_swap("", 64, 96), (128, 2**63 - 1), id="more memory and any swap"),
        pytest.param(with_swap("", 0, -1), with_swap("", 64, -1), (None, -1), id="no limit of swap, as before"),
        pytest.param(with_swap("", 128, 96), with_swap("", 64, 160), (128, 96), id="for the engine to refuse"),
        pytest.param({"cpuset_cpus": "0"}, with_swap("", 64, 96), (None, None), id="nothing of memory"),
    ],
)
def test_swap(fields: dict[str, Any], before: dict[str, Any], expected: tuple[int | None, int | None]) -> None:
    """What runc and the engine do not know they undo with the next update of anything."""
    found = to_engine_resources(resources(**fields), before=resources(**before))
    assert (found.get("Memory"), found.get("MemorySwap")) == expected


@given(before=st.integers(MIB, 1 << 40), after=st.integers(MIB, 1 << 40))
def test_memory_can_be_updated_to_less_and_to_more(before: int, after: int) -> None:
    """An engine refuses a limit above the swap limit that it knows, unless a new swap limit comes along."""
    known = to_engine_resources(resources(memory_limit_in_bytes=before))
    update = to_engine_resources(resources(memory_limit_in_bytes=after))

    assert not (update["Memory"] > known["MemorySwap"] and not update.get("MemorySwap"))
    assert update["MemorySwap"] >= update["Memory"]


@given(
    st.builds(
        cri.LinuxContainerResources,
        cpu_period=st.integers(0, 10**6),
        cpu_quota=st.integers(-1, 10**6),
        cpu_shares=st.integers(0, 262144),
        memory_limit_in_bytes=st.integers(1, 1 << 50),
        memory_swap_limit_in_bytes=st.integers(1, 1 << 50),
        oom_score_adj=st.integers(-1000, 1000),
        cpuset_cpus=st.sampled_from(["", "0", "0-3,7"]),
        cpuset_mems=st.sampled_from(["", "0"]),
    )
)
def test_resources_come_back(asked: cri.LinuxContainerResources) -> None:
    host_config = {**to_engine_resources(asked), "OomScoreAdj": asked.oom_score_adj}

    assert to_cri_resources(host_config) == asked


def test_a_swap_limit_that_was_taken_away_is_none() -> None:
    taken = to_engine_resources(resources(memory_swap_limit_in_bytes=-1), before=resources(**with_swap("", 64, 96)))
    assert to_cri_resources({"Memory": 64, **taken}) == resources(**with_swap("", 64, -1))
    assert to_engine_resources(resources(cpu_shares=2), before=to_cri_resources(taken)) == {"CpuShares": 2}


@pytest.mark.parametrize("host_config", [{}, {"Memory": 0, "OomScoreAdj": None, "CpusetCpus": ""}])
def test_a_container_without_limits(host_config: dict[str, Any]) -> None:
    assert to_cri_resources(host_config) == resources()


@pytest.mark.parametrize(
    ("wanted", "lowest", "expected"),
    [
        pytest.param(-998, -1000, -998, id="an engine that may lower"),
        pytest.param(-998, 0, 0, id="one that may not"),
        pytest.param(996, 0, 996, id="raising is always allowed"),
    ],
)
def test_scores(wanted: int, lowest: int, expected: int) -> None:
    assert to_oom_score(wanted, lowest) == expected


@pytest.mark.parametrize(
    ("fields", "version", "expected"),
    [
        pytest.param({}, 1, {}, id="nothing set, v1"),
        pytest.param({}, 2, {}, id="nothing set, v2"),
        pytest.param({"hugepage_limits": pages("2MB", 5)}, 1, {"hugetlb.2MB.limit_in_bytes": "5"}, id="pages, v1"),
        pytest.param({"hugepage_limits": pages("2MB", 5)}, 2, {"hugetlb.2MB.max": "5"}, id="pages, v2"),
        pytest.param({"unified": {"memory.min": "7"}}, 2, {"memory.min": "7"}, id="unified"),
        pytest.param(
            {"hugepage_limits": pages("2MB", 5), "unified": {"hugetlb.2MB.max": "7"}},
            2,
            {"hugetlb.2MB.max": "7"},
            id="unified has the last word",
        ),
        pytest.param(
            {"hugepage_limits": pages("2MB", 2**64 - 1)}, 2, {"hugetlb.2MB.max": str(2**64 - 1)}, id="the most pages"
        ),
    ],
)
def test_cgroup_files(fields: dict[str, Any], version: int, expected: dict[str, str]) -> None:
    assert to_cgroup_files(resources(**fields), version) == expected


def test_unified_needs_cgroup_v2() -> None:
    """A kubelet sends it on v2 only; somebody who sends it elsewhere must learn that it has no effect."""
    with pytest.raises(Unsupported, match=r"unified: not supported on cgroup v1"):
        to_cgroup_files(resources(unified={"memory.min": "7"}), 1)


@pytest.mark.parametrize(
    ("file", "current", "expected"),
    [
        ("memory.high", {}, "max"),
        ("memory.swap.high", {}, "max"),
        ("memory.zswap.max", {}, "max"),
        ("pids.max", {}, "max"),
        ("hugetlb.2MB.max", {}, "max"),
        ("hugetlb.1GB.rsvd.max", {}, "max"),
        ("memory.min", {}, "0"),
        ("memory.low", {}, "0"),
        ("memory.oom.group", {}, "0"),
        pytest.param("memory.max", {}, "max", id="no limit of memory"),
        pytest.param("memory.max", with_swap("", 64, 96), "64", id="the engine's limit of memory"),
        pytest.param("memory.swap.max", {}, "max", id="no limit of swap"),
        pytest.param("memory.swap.max", with_swap("", 64, 64), "0", id="the engine's limit of swap: none"),
        pytest.param("memory.swap.max", with_swap("", 64, 96), "32", id="the engine's limit of swap: some"),
    ],
)
def test_what_files_have_that_nothing_was_asked_for(file: str, current: dict[str, Any], expected: str) -> None:
    assert value_at_start(file, resources(**current)) == expected
