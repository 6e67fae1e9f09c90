"""Readings as messages of the CRI."""

from __future__ import annotations

from dataclasses import replace

import pytest
from google.protobuf.json_format import MessageToDict

from dockershim.stats.cgroup import Pressure, Stall, Usage
from dockershim.stats.layers import LayerUsage
from dockershim.stats.network import Interface
from dockershim.stats.to_cri import (
    set_moment,
    to_cri_container_stats,
    to_cri_layer,
    to_cri_network,
    to_cri_pod_stats,
    total,
)
from tests.unit.stats.cgroup_trees import USAGE

NOW = 10**18
PRESSURE = Pressure(Stall(5, 1.5, 0.5, 0.25), Stall(3, 0, 0, 0))


def test_a_container_that_runs() -> None:
    usage = replace(USAGE, cpu_pressure=PRESSURE, memory_pressure=PRESSURE, io_pressure=PRESSURE)
    stats = to_cri_container_stats(usage)
    set_moment(stats, NOW, 250)
    assert (stats.cpu.timestamp, stats.cpu.usage_core_nano_seconds.value, stats.cpu.usage_nano_cores.value) == (
        NOW,
        123456789,
        250,
    )
    memory = stats.memory
    assert memory.working_set_bytes.value == 1048576 - 270336
    assert memory.available_bytes.value == 67108864 - (1048576 - 270336)
    assert (memory.usage_bytes.value, memory.rss_bytes.value) == (1048576, 208896)
    assert (memory.page_faults.value, memory.major_page_faults.value) == (1234, 5)
    assert (stats.swap.swap_usage_bytes.value, stats.swap.swap_available_bytes.value) == (4096, 33554432 - 4096)
    for psi in (stats.cpu.psi, stats.memory.psi, stats.io.psi):
        # The CRI's total is in nanoseconds.
        assert (psi.Some.Total, psi.Some.Avg10, psi.Some.Avg60, psi.Some.Avg300) == (5000, 1.5, 0.5, 0.25)
        assert psi.Full.Total == 3000


@pytest.mark.parametrize(
    ("usage", "left_out"),
    [
        pytest.param(replace(USAGE, memory_limit=None), "memory.available_bytes", id="no memory limit"),
        pytest.param(replace(USAGE, swap_limit=None), "swap.swap_available_bytes", id="no swap limit"),
        pytest.param(replace(USAGE, swap=None), "swap", id="no accounting for swap"),
        pytest.param(USAGE, "io", id="no pressure: io"),
        pytest.param(USAGE, "cpu.psi", id="no pressure: cpu"),
        pytest.param(
            replace(USAGE, cpu_pressure=Pressure(PRESSURE.some, None)), "cpu.psi.Full", id="no full pressure of CPU"
        ),
    ],
)
def test_what_is_not_known_is_left_out(usage: Usage, left_out: str) -> None:
    found = MessageToDict(to_cri_container_stats(usage), preserving_proto_field_name=True)
    *path, last = left_out.split(".")
    for name in path:
        found = found[name]
    assert last not in found


def test_a_working_set_above_the_limit_leaves_nothing() -> None:
    stats = to_cri_container_stats(replace(USAGE, memory_limit=1, swap_limit=1))
    assert (stats.memory.available_bytes.value, stats.swap.swap_available_bytes.value) == (0, 0)


def test_everything_has_the_time_of_its_reading() -> None:
    interfaces = [Interface("eth0", 1, 2, 3, 4, 5, 6, 7, 8)]
    pressed = replace(USAGE, io_pressure=PRESSURE)
    pod = to_cri_pod_stats(pressed, 3, interfaces, "eth0")
    for stats, count in (
        (to_cri_container_stats(pressed), 4),
        (to_cri_container_stats(USAGE), 3),
        (pod, 5),
    ):
        for now in (NOW, NOW + 1):
            set_moment(stats, now, 250)
            assert [part.timestamp for _, part in stats.ListFields()] == [now] * count
    assert (pod.process.process_count.value, pod.network.default_interface.name) == (3, "eth0")
    assert (pod.cpu.usage_nano_cores.value, pod.memory.usage_bytes.value) == (250, USAGE.memory)


def test_the_rate_of_cpu_may_be_unknown_again() -> None:
    stats = to_cri_container_stats(USAGE)
    for rate in (250, None, 0):
        set_moment(stats, NOW, rate)
        assert stats.cpu.HasField("usage_nano_cores") == (rate is not None)
        assert stats.cpu.usage_nano_cores.value == (rate or 0)


def test_a_pod_without_interfaces_has_no_network() -> None:
    assert not to_cri_pod_stats(USAGE, 1, (), "eth0").HasField("network")


def test_a_writable_layer() -> None:
    found = to_cri_layer(LayerUsage(NOW, 4096, 2), "/var/lib/docker")
    assert (found.timestamp, found.fs_id.mountpoint) == (NOW, "/var/lib/docker")
    assert (found.used_bytes.value, found.inodes_used.value) == (4096, 2)
    assert not to_cri_layer(LayerUsage(NOW, 4096, None), "/var/lib/docker").HasField("inodes_used")


def test_the_default_interface_stands_apart() -> None:
    interfaces = [Interface("eth0", 1, 2, 3, 4, 5, 6, 7, 8), Interface("net1", 9, 0, 0, 0, 0, 0, 0, 0)]
    found = to_cri_network(interfaces, "eth0")
    default = found.default_interface
    assert (default.name, default.rx_bytes.value, default.rx_errors.value) == ("eth0", 1, 3)
    assert (default.tx_bytes.value, default.tx_errors.value) == (5, 7)
    assert [(one.name, one.rx_bytes.value) for one in found.interfaces] == [("net1", 9)]


def test_a_pod_without_a_cgroup_is_its_containers_together() -> None:
    both = total([USAGE, USAGE])
    assert (both.cpu, both.memory, both.working_set) == (2 * USAGE.cpu, 2 * USAGE.memory, 2 * USAGE.working_set)
    assert both.memory_limit is None
    assert not to_cri_container_stats(both).HasField("io")
