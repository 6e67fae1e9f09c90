"""What an engine's ``/info`` says that it can do."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dockershim.translate.capabilities import read_capabilities
from tests.unit.translate.kubelet import ENGINE_28


def features(*options: str) -> dict[str, Any]:
    """A runtime as engines from 25 on tell of it, with the mount options that it knows."""
    told = json.dumps({"ociVersionMax": "1.2.0", "mountOptions": options})
    return {"path": "runc", "status": {"org.opencontainers.runtime-spec.features": told}}


INFO: dict[str, Any] = {
    "ServerVersion": "28.5.1",
    "DockerRootDir": "/var/lib/docker",
    "Driver": "overlay2",
    "Containerd": {"Address": "/run/containerd/containerd.sock", "Namespaces": {"Containers": "moby"}},
    "Architecture": "x86_64",
    "Runtimes": {"runc": features("ro", "rro"), "io.containerd.runc.v2": {"path": "runc"}, "kata": features("ro")},
    "DefaultRuntime": "runc",
    "CgroupDriver": "systemd",
    "CgroupVersion": "2",
    "SecurityOptions": ["name=apparmor", "name=seccomp,profile=builtin", "name=cgroupns"],
    "SwapLimit": True,
    "CDISpecDirs": ["/etc/cdi"],
    "KernelVersion": "6.12.41+deb13-amd64",
    "OperatingSystem": "Debian GNU/Linux 13 (trixie)",
    "LiveRestoreEnabled": False,
    **dict.fromkeys(("MemoryLimit", "CPUShares", "CpuCfsPeriod", "CpuCfsQuota", "CPUSet", "PidsLimit"), True),
}


def test_an_engine_of_today() -> None:
    assert read_capabilities((1, 51), INFO) == ENGINE_28


def test_an_engine_that_says_nothing() -> None:
    features = read_capabilities((1, 41), {"Runtimes": None, "SecurityOptions": None, "CDISpecDirs": None})

    assert (features.containerd_store, features.containerd_socket) == (False, "")
    assert (features.cgroup_version, features.runtimes, features.kernel) == (1, frozenset(), (0, 0))
    assert features.handlers == ("", "docker")
    assert (features.apparmor, features.selinux, features.seccomp, features.swap_limit, features.cdi) == (False,) * 5


@pytest.mark.parametrize(
    ("driver", "status", "expected"),
    [
        pytest.param("overlayfs", [["driver-type", "io.containerd.snapshotter.v1"]], True, id="containerd's store"),
        pytest.param("btrfs", [["driver-type", "io.containerd.snapshotter.v1"]], True, id="a name that both have"),
        pytest.param("btrfs", [["Btrfs", ""]], False, id="a graph driver"),
        pytest.param("overlay2", None, False, id="nothing more"),
    ],
)
def test_the_image_store(driver: str, status: list[list[str]] | None, expected: bool) -> None:
    can = read_capabilities((1, 51), INFO | {"Driver": driver, "DriverStatus": status})
    assert (can.storage_driver, can.containerd_store) == (driver, expected)


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
    ("runtime", "kernel", "expected"),
    [
        pytest.param(features("ro", "rro"), "5.12", True, id="a runtime that says so"),
        pytest.param(features("ro", "rro"), "5.11", False, id="a kernel without mount_setattr"),
        pytest.param(features("ro"), "6.1", False, id="a runtime that does not know the option"),
        pytest.param({"path": "runc"}, "6.1", False, id="an engine before 25, or a runtime without features"),
        pytest.param({"status": None}, "6.1", False, id="no status"),
        pytest.param(
            {"status": {"org.opencontainers.runtime-spec.features": "{}"}}, "6.1", False, id="features without mounts"
        ),
        pytest.param(
            {"status": {"org.opencontainers.runtime-spec.features": "?"}}, "6.1", False, id="features that are none"
        ),
    ],
)
def test_mounts_that_are_read_only_all_the_way_down(runtime: dict[str, Any], kernel: str, expected: bool) -> None:
    info = {"Runtimes": {"runc": runtime}, "DefaultRuntime": "runc", "KernelVersion": kernel}
    features = read_capabilities((1, 51), info)

    assert {features.has_recursive_read_only(handler) for handler in ("", "docker", "runc")} == {expected}


def test_each_runtime_has_its_own_features() -> None:
    features = read_capabilities((1, 51), INFO)

    able = {name: features.has_recursive_read_only(name) for name in features.handlers}
    assert able == {"": True, "docker": True, "runc": True, "io.containerd.runc.v2": False, "kata": False}
    assert read_capabilities((1, 51), INFO | {"DefaultRuntime": "kata"}).has_recursive_read_only("docker") is False


@pytest.mark.parametrize(
    ("runtimes", "handler", "expected"),
    [
        pytest.param(("runc",), "", "", id="none"),
        pytest.param(("runc",), "docker", "", id="the name of the default in every dockershim"),
        pytest.param(("runc", "docker"), "docker", "docker", id="a runtime that has this name"),
        pytest.param(("runc",), "runc", "runc", id="a runtime"),
    ],
)
def test_the_runtime_of_a_handler(runtimes: tuple[str, ...], handler: str, expected: str) -> None:
    features = read_capabilities((1, 51), {"Runtimes": {name: {} for name in runtimes}, "DefaultRuntime": "runc"})

    assert handler in features.handlers
    assert features.runtime_of(handler) == expected


def test_selinux() -> None:
    assert read_capabilities((1, 51), {"SecurityOptions": ["name=selinux"]}).selinux


def test_what_the_kernel_and_the_daemon_were_started_without() -> None:
    options = ["name=seccomp,profile=builtin", "name=userns", "name=rootless"]
    without = {"CPUSet": False, "PidsLimit": False, "LiveRestoreEnabled": True, "SecurityOptions": options}
    features = read_capabilities((1, 47), INFO | without)
    assert features.missing_limits == ("cpuset", "pids")
    assert (features.live_restore, features.user_namespace_remap, features.rootless) == (True, True, True)
    assert (features.image_volumes, read_capabilities((1, 48), INFO).image_volumes) == (False, True)
