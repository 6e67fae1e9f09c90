"""What an engine's ``/info`` says that it can do."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dockershim.translate.capabilities import read_capabilities
from tests.unit.translate.kubelet import ENGINE_28

INFO: dict[str, Any] = {
    "ServerVersion": "28.5.1",
    "DockerRootDir": "/var/lib/docker",
    "Driver": "overlay2",
    "Architecture": "x86_64",
    "Runtimes": {"runc": {"path": "runc"}, "io.containerd.runc.v2": {}, "kata": {}},
    "DefaultRuntime": "runc",
    "CgroupDriver": "systemd",
    "CgroupVersion": "2",
    "SecurityOptions": ["name=apparmor", "name=seccomp,profile=builtin", "name=cgroupns"],
    "SwapLimit": True,
    "CDISpecDirs": ["/etc/cdi"],
    "KernelVersion": "6.12.41+deb13-amd64",
}


def test_an_engine_of_today() -> None:
    assert read_capabilities((1, 51), INFO) == ENGINE_28


def test_an_engine_that_says_nothing() -> None:
    can = read_capabilities((1, 41), {"Runtimes": None, "SecurityOptions": None, "CDISpecDirs": None})

    assert (can.cgroup_version, can.runtimes, can.kernel) == (1, frozenset(), (0, 0))
    assert (can.apparmor, can.selinux, can.seccomp, can.swap_limit, can.cdi) == (False,) * 5


@pytest.mark.parametrize(
    ("release", "expected"),
    [
        pytest.param("5.15.0-91-generic", (5, 15), id="a distribution's"),
        pytest.param("6.1-rc2", (6, 1), id="a candidate's"),
        pytest.param("6.12+", (6, 12), id="a tree with changes"),
        pytest.param("4.19.112", (4, 19), id="plain"),
        pytest.param("unknown", (0, 0), id="none"),
    ],
)
def test_kernels(release: str, expected: tuple[int, int]) -> None:
    assert read_capabilities((1, 51), {"KernelVersion": release}).kernel == expected


@pytest.mark.parametrize(
    ("api", "kernel", "expected"),
    [((1, 44), (5, 12), True), ((1, 43), (6, 1), False), ((1, 51), (5, 11), False), ((2, 0), (10, 0), True)],
)
def test_mounts_that_are_read_only_all_the_way_down(
    api: tuple[int, int], kernel: tuple[int, int], expected: bool
) -> None:
    assert replace(ENGINE_28, api=api, kernel=kernel).recursive_read_only is expected


def test_selinux() -> None:
    assert read_capabilities((1, 51), {"SecurityOptions": ["name=selinux"]}).selinux
