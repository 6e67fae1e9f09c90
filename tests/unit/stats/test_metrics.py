"""cAdvisor's metrics: the catalogue, the values, and their wire form, which the protobuf library has to understand."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dockershim.api.cri.v1 import api_pb2 as cri
from dockershim.stats import metrics
from dockershim.stats.cgroup import Details, Device, HugePages, Pressure, Stall, parse_details_v1
from dockershim.stats.metrics import CATALOGUE, LABELS, FileSystem, Metric, Sample, Series
from dockershim.stats.network import Interface
from dockershim.stats.processes import Open
from tests.unit.stats.cgroup_trees import USAGE, V1
from tests.unit.stats.expected_metrics import EXPECTED

DETAILS = parse_details_v1(V1)


def values(samples: Iterable[Sample]) -> dict[tuple[str, ...], int]:
    """By the name without its beginning, and the metric's own labels; none twice, which a scrape would fail of."""
    found: dict[tuple[str, ...], int] = {}
    for metric, value, labels in samples:
        assert len(labels) == len(metric.labels), metric.name
        key = (metric.name.removeprefix("container_"), *labels)
        assert key not in found
        found[key] = value
    return found


def test_the_catalogue_has_what_is_expected_of_a_runtime_and_each_once() -> None:
    names = [metric.name for metric in CATALOGUE]
    assert {f"container_{name}" for name in EXPECTED.split()} <= set(names)
    assert len(set(names)) == len(names)
    for metric in CATALOGUE:
        described = metric.to_cri()
        assert list(described.label_keys) == [*LABELS, *metric.labels]
        assert described.help
        # Prometheus: a counter of seconds or events is named so.
        counts = metric.name.endswith(("_total", "_failcnt")) and metric.name != "container_fs_inodes_total"
        assert counts == (metric.kind == cri.COUNTER)


@pytest.mark.parametrize(
    ("limited", "details", "throttling"),
    [
        pytest.param(True, DETAILS, {"periods": 40, "throttled_periods": 3, "throttled_seconds": 0}, id="a quota"),
        pytest.param(False, parse_details_v1({}), {}, id="no quota, nothing to be throttled by"),
        pytest.param(
            False, DETAILS, {"periods": 40, "throttled_periods": 3, "throttled_seconds": 0}, id="a quota by others"
        ),
    ],
)
def test_cpu(limited: bool, details: Details, throttling: dict[str, int]) -> None:
    found = values(metrics.cpu(USAGE, details, limited=limited))
    assert found.pop(("cpu_usage_seconds_total", "total")) == 0
    assert found.pop(("cpu_user_seconds_total",)) == 0
    assert found.pop(("cpu_system_seconds_total",)) == 0
    assert found == {(f"cpu_cfs_{name}_total",): value for name, value in throttling.items()}


def test_memory() -> None:
    found = values(metrics.memory(USAGE, DETAILS))
    assert found["memory_working_set_bytes",] == 1048576 - 270336
    assert found["memory_usage_bytes",] == 1048576
    assert found["memory_rss",] == 208896
    assert found["memory_cache",] == 700416
    assert found["memory_swap",] == 4096
    assert found["memory_failcnt",] == 7
    assert found["oom_events_total",] == 2
    for scope in ("container", "hierarchy"):
        assert found["memory_failures_total", "pgfault", scope] == 1234
        assert found["memory_failures_total", "pgmajfault", scope] == 5


def test_pressure_is_told_in_seconds_and_only_where_it_is_measured() -> None:
    some, full = Stall(3_999_999, 0, 0, 0), Stall(1_000_000, 0, 0, 0)
    assert values(metrics.pressure(USAGE)) == {}

    found = values(
        metrics.pressure(replace(USAGE, io_pressure=Pressure(some, full), cpu_pressure=Pressure(some, None)))
    )
    assert found == {
        ("pressure_io_waiting_seconds_total",): 3,
        ("pressure_io_stalled_seconds_total",): 1,
        ("pressure_cpu_waiting_seconds_total",): 3,
        ("pressure_cpu_stalled_seconds_total",): 0,
    }


def test_network_by_interface() -> None:
    found = values(metrics.network([Interface("eth0", 1, 2, 3, 4, 5, 6, 7, 8), Interface("net1", *[0] * 8)]))
    assert len(found) == 16
    told = {name.removeprefix("network_"): value for (name, interface), value in found.items() if interface == "eth0"}
    assert told == {
        "receive_bytes_total": 1,
        "receive_packets_total": 2,
        "receive_errors_total": 3,
        "receive_packets_dropped_total": 4,
        "transmit_bytes_total": 5,
        "transmit_packets_total": 6,
        "transmit_errors_total": 7,
        "transmit_packets_dropped_total": 8,
    }


class Sda:
    """A node with one disk."""

    def device_name(self, number: str) -> str:
        return {"8:0": "/dev/sda"}.get(number, number)


def test_disk_operations_by_device() -> None:
    devices = (Device("8:0", {"read": 1, "write": 2}, {"read": 3, "write": 4}), Device("8:16", {}, {}))

    found = values(metrics.disk_operations(replace(DETAILS, devices=devices), Sda()))
    assert found["blkio_device_usage_total", "/dev/sda", "8", "0", "Read"] == 1
    assert found["blkio_device_usage_total", "/dev/sda", "8", "0", "Write"] == 2
    assert found["fs_reads_bytes_total", "/dev/sda"] == 1
    assert found["fs_writes_bytes_total", "/dev/sda"] == 2
    assert found["fs_reads_total", "/dev/sda"] == 3
    assert found["fs_writes_total", "/dev/sda"] == 4
    assert found["fs_reads_total", "8:16"] == 0


def test_file_system_processes_and_huge_pages() -> None:
    assert values(metrics.file_system(5, FileSystem("/dev/sda", 100, 20, 10))) == {
        ("fs_usage_bytes", "/dev/sda"): 5,
        ("fs_limit_bytes", "/dev/sda"): 100,
        ("fs_inodes_total", "/dev/sda"): 20,
        ("fs_inodes_free", "/dev/sda"): 10,
    }
    assert values(metrics.processes(2, 3, 100, Open(10, 4, 1024))) == {
        ("processes",): 2,
        ("threads",): 3,
        ("threads_max",): 100,
        ("file_descriptors",): 10,
        ("sockets",): 4,
        ("ulimits_soft", "max_open_files"): 1024,
    }
    assert ("ulimits_soft", "max_open_files") not in values(metrics.processes(2, 3, None, Open(10, 4, None)))
    assert values(metrics.processes(2, 3, 100, None)) == {("processes",): 2, ("threads",): 3, ("threads_max",): 100}
    assert values(metrics.huge_pages([HugePages("2MB", 1, 2), HugePages("1GB", 3, None)])) == {
        ("hugetlb_usage_bytes", "2MB"): 1,
        ("hugetlb_max_usage_bytes", "2MB"): 2,
        ("hugetlb_usage_bytes", "1GB"): 3,
    }


@pytest.mark.parametrize(
    ("host_config", "told"),
    [
        pytest.param(
            {}, {"cpu_period": 100000, "cpu_shares": 1024, "memory_limit_bytes": 0}, id="defaults without a quota"
        ),
        pytest.param(
            {"CpuPeriod": 50000, "CpuQuota": 25000, "CpuShares": 2, "Memory": 64, "MemorySwap": 96},
            {
                "cpu_period": 50000,
                "cpu_quota": 25000,
                "cpu_shares": 2,
                "memory_limit_bytes": 64,
                "memory_swap_limit_bytes": 96,
            },
            id="as a kubelet gives them",
        ),
        pytest.param({"NanoCpus": 1_500_000_000}, {"cpu_quota": 150000, "cpu_period": 100000}, id="--cpus of docker"),
        pytest.param(
            {"Memory": 64, "MemorySwap": -1, "CpuQuota": -1, "MemoryReservation": 32},
            {"memory_swap_limit_bytes": 0, "memory_reservation_limit_bytes": 32},
            id="-1 is no limit",
        ),
    ],
)
def test_spec(host_config: dict[str, Any], told: dict[str, int]) -> None:
    found = values(metrics.spec(host_config, 5 * 10**9 + 1, cgroup_version=1))
    assert found.pop(("start_time_seconds",)) == 5
    assert {(f"spec_{name}",): value for name, value in told.items()}.items() <= found.items()
    assert (("spec_cpu_quota",) in found) == ("cpu_quota" in told)


@pytest.mark.parametrize(("both", "swap"), [(96, 32), (64, 0), (-1, 0), (2**63 - 1, 0), (0, 0)])
def test_spec_of_swap_with_cgroup_v2(both: int, swap: int) -> None:
    found = values(metrics.spec({"Memory": 64, "MemorySwap": both}, 0, cgroup_version=2))
    assert (found["spec_memory_limit_bytes",], found["spec_memory_swap_limit_bytes",]) == (64, swap)


def test_when_a_container_was_seen() -> None:
    assert values(metrics.seen(7)) == {("last_seen",): 7}


@given(
    st.lists(st.tuples(st.sampled_from(CATALOGUE), st.integers(0, 2**64 - 2)), max_size=20),
    st.tuples(*[st.text(max_size=200)] * len(LABELS)),
    st.text(max_size=300),
)
def test_the_wire_form_is_what_the_library_reads(
    given_values: list[tuple[Metric, int]], labels: tuple[str, str, str, str, str, str], own: str
) -> None:
    # As in any scrape, none is there twice.
    samples = [(metric, value, (own,) * len(metric.labels)) for metric, value in dict(given_values).items()]
    series = Series(labels)
    series.encode(
        list, [(metric, value + number % 2, labels) for number, (metric, value, labels) in enumerate(samples)]
    )
    encoded = series.encode(list, samples)
    assert series.encode(list, samples) == encoded
    wire = metrics.encode_pod("pod", [encoded, metrics.encode_container("container", [encoded])])
    expected = [
        cri.Metric(
            name=metric.name,
            metric_type=metric.kind,
            label_values=[*labels, *extra],
            value=cri.UInt64Value(value=value),
        )
        for metric, value, extra in samples
    ]
    pod = cri.PodSandboxMetrics(
        pod_sandbox_id="pod",
        metrics=expected,
        container_metrics=[cri.ContainerMetrics(container_id="container", metrics=expected)],
    )
    assert cri.ListPodSandboxMetricsResponse.FromString(wire).pod_metrics == [pod]
    assert cri.StreamPodSandboxMetricsResponse.FromString(wire).pod_sandbox_metrics == [pod]
