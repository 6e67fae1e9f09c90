"""Readings as messages of the CRI."""

from __future__ import annotations

from dataclasses import replace

import pytest
from google.protobuf.json_format import MessageToDict

from dockershim.stats.cgroup import Pressure, Stall, Usage
from dockershim.stats.layers import LayerUsage
from dockershim.stats.messages import to_cri_container_stats, to_cri_io, to_cri_layer, to_cri_network, total
from dockershim.stats.network import Interface
from tests.unit.stats.test_cgroup import USAGE

NOW = 10**18
PRESSURE = Pressure(Stall(5, 1.5, 0.5, 0.25), Stall(3, 0, 0, 0))


def test_a_container_that_runs() -> None:
    usage = replace(USAGE, cpu_pressure=PRESSURE, memory_pressure=PRESSURE, io_pressure=PRESSURE)
    stats = to_cri_container_stats(usage, 250, NOW)
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
        pytest.param(USAGE, "cpu.usage_nano_cores", id="one sample"),
        pytest.param(
            replace(USAGE, cpu_pressure=Pressure(PRESSURE.some, None)), "cpu.psi.Full", id="no full pressure of CPU"
        ),
    ],
)
def test_what_is_not_known_is_left_out(usage: Usage, left_out: str) -> None:
    found = MessageToDict(to_cri_container_stats(usage, None, NOW), preserving_proto_field_name=True)
    *path, last = left_out.split(".")
    for name in path:
        found = found[name]
    assert last not in found


def test_a_working_set_above_the_limit_leaves_nothing() -> None:
    stats = to_cri_container_stats(replace(USAGE, memory_limit=1, swap_limit=1), None, NOW)
    assert (stats.memory.available_bytes.value, stats.swap.swap_available_bytes.value) == (0, 0)


def test_a_container_that_has_ended_tells_nothing() -> None:
    assert to_cri_container_stats(None, None, NOW).SerializeToString() == b""


def test_a_writable_layer() -> None:
    found = to_cri_layer(LayerUsage(NOW, 4096, 2), "/var/lib/docker")
    assert found is not None
    assert (found.timestamp, found.fs_id.mountpoint) == (NOW, "/var/lib/docker")
    assert (found.used_bytes.value, found.inodes_used.value) == (4096, 2)
    by_engine = to_cri_layer(LayerUsage(NOW, 4096, None), "/var/lib/docker")
    assert by_engine is not None
    assert not by_engine.HasField("inodes_used")
    assert to_cri_layer(None, "/var/lib/docker") is None


def test_the_default_interface_stands_apart() -> None:
    interfaces = [Interface("eth0", 1, 2, 3, 4, 5, 6, 7, 8), Interface("net1", 9, 0, 0, 0, 0, 0, 0, 0)]
    found = to_cri_network(interfaces, "eth0", NOW)
    assert found.timestamp == NOW
    default = found.default_interface
    assert (default.name, default.rx_bytes.value, default.rx_errors.value) == ("eth0", 1, 3)
    assert (default.tx_bytes.value, default.tx_errors.value) == (5, 7)
    assert [(one.name, one.rx_bytes.value) for one in found.interfaces] == [("net1", 9)]


def test_a_pod_without_a_cgroup_is_its_containers_together() -> None:
    both = total([USAGE, USAGE])
    assert (both.cpu, both.memory, both.working_set) == (2 * USAGE.cpu, 2 * USAGE.memory, 2 * USAGE.working_set)
    assert both.memory_limit is None
    assert to_cri_io(both, NOW) is None
