"""The parsers of cgroup files, on samples of both versions."""

from __future__ import annotations

import pytest

from dockershim.stats.cgroup import Usage, parse_v1, parse_v2

# A container of `sleep` with a limit of 64 MiB that has read a file, on Linux 6.1 (v1) and 6.6 (v2), shortened.
V1 = {
    "cpuacct.usage": "123456789\n",
    "memory.usage_in_bytes": "1048576\n",
    "memory.memsw.usage_in_bytes": "1052672\n",
    "memory.stat": (
        "cache 700416\nrss 204800\npgfault 12\npgmajfault 1\ninactive_file 1\nhierarchical_memory_limit 67108864\n"
        "total_cache 700416\ntotal_rss 208896\ntotal_pgfault 1234\ntotal_pgmajfault 5\ntotal_inactive_file 270336\n"
    ),
}
V2 = {
    "cpu.stat": "usage_usec 123456\nuser_usec 100000\nsystem_usec 23456\n",
    "memory.current": "1048576\n",
    "memory.max": "67108864\n",
    "memory.swap.current": "4096\n",
    "memory.stat": "anon 208896\nfile 700416\ninactive_file 270336\npgfault 1234\npgmajfault 5\n",
}
MEMORY = {
    "memory": 1048576,
    "inactive_file": 270336,
    "rss": 208896,
    "page_faults": 1234,
    "major_page_faults": 5,
    "memory_limit": 67108864,
    "swap": 4096,
}


def test_both_versions_say_the_same() -> None:
    assert parse_v1(V1) == Usage(cpu=123456789, **MEMORY)
    assert parse_v2(V2) == Usage(cpu=123456000, **MEMORY)


def test_the_working_set_leaves_out_inactive_page_cache() -> None:
    assert parse_v1(V1).working_set == 1048576 - 270336


@pytest.mark.parametrize(
    "usage",
    [
        pytest.param(
            parse_v1({**V1, "memory.stat": "hierarchical_memory_limit 9223372036854771712\n"}), id="v1: a huge number"
        ),
        pytest.param(parse_v2({**V2, "memory.max": "max\n"}), id="v2: the word max"),
    ],
)
def test_no_limit(usage: Usage) -> None:
    assert usage.memory_limit == 0


@pytest.mark.parametrize(
    "usage",
    [
        pytest.param(parse_v1({**V1, "memory.memsw.usage_in_bytes": ""}), id="v1"),
        pytest.param(parse_v2({**V2, "memory.swap.current": ""}), id="v2"),
    ],
)
def test_a_kernel_that_does_not_account_for_swap(usage: Usage) -> None:
    assert usage.swap is None


def test_a_working_set_is_never_negative() -> None:
    assert parse_v2({**V2, "memory.stat": "inactive_file 99999999\n"}).working_set == 0
