"""A tree of cgroup files, and the usage that it tells."""

from __future__ import annotations

from dockershim.stats.cgroup import Usage

# A container with a limit of 64 MiB, of 96 MiB with swap, and of half a CPU, that has read a file, on Linux 6.1 (v1)
# and 6.6 (v2), shortened.
V1 = {
    "cpuacct.usage": "123456789\n",
    "cpuacct.stat": "user 10\nsystem 2\n",
    "cpu.stat": "nr_periods 40\nnr_throttled 3\nthrottled_time 250000000\nnr_bursts 0\nburst_time 0\n",
    "memory.usage_in_bytes": "1048576\n",
    "memory.stat": (
        "cache 700416\nrss 204800\npgfault 12\npgmajfault 1\ninactive_file 1\nhierarchical_memory_limit 67108864\n"
        "hierarchical_memsw_limit 100663296\ntotal_cache 700416\ntotal_rss 208896\ntotal_mapped_file 4096\n"
        "total_swap 4096\ntotal_pgfault 1234\ntotal_pgmajfault 5\ntotal_inactive_file 270336\ntotal_active_file 8192\n"
    ),
    "memory.failcnt": "7\n",
    "memory.max_usage_in_bytes": "2097152\n",
    "memory.kmem.usage_in_bytes": "139264\n",
    "memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n",
    "pids.current": "3\n",
    "pids.max": "100\n",
    "blkio.throttle.io_service_bytes_recursive": (
        "8:0 Read 4096\n8:0 Write 8192\n8:0 Sync 12288\n8:0 Async 0\n8:0 Discard 0\n8:0 Total 12288\nTotal 12288\n"
    ),
    "blkio.throttle.io_serviced_recursive": (
        "8:0 Read 1\n8:0 Write 2\n8:0 Sync 3\n8:0 Async 0\n8:0 Discard 0\n8:0 Total 3\nTotal 3\n"
    ),
}
USAGE = Usage(
    cpu=123456789,
    memory=1048576,
    inactive_file=270336,
    active_file=8192,
    rss=208896,
    cache=700416,
    mapped_file=4096,
    page_faults=1234,
    major_page_faults=5,
    memory_limit=67108864,
    swap=4096,
    swap_limit=33554432,
)
