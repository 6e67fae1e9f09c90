"""Who gives a container the cgroup files that the engine has no field for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dockershim.translate.capabilities import Capabilities, RuntimeSupport
from dockershim.translate.cgroup_files import reset_files, specified_files, specify, to_write
from dockershim.translate.config_members import ANNOTATION, read_members, with_members
from dockershim.translate.resources import SWAP_FILE
from tests.unit.translate.kubelet import ENGINE_28

SYSTEMD = replace(ENGINE_28, huge_pages=("2MB", "1GB"))
CGROUPFS = replace(SYSTEMD, cgroup_driver="cgroupfs")
V1 = replace(CGROUPFS, cgroup_version=1)
#: What a kubelet of 1.37 sends for each container, and what all kubelets send.
NEWEST = {"memory.min": "0", "memory.low": "0", "memory.oom.group": "1", SWAP_FILE: "0"}
PAGES = {"hugetlb.2MB.max": "0", "hugetlb.1GB.max": "0"}
LIMITED = {"Memory": 64 << 20, "MemorySwap": 64 << 20}


def with_runtime(features: Capabilities) -> Capabilities:
    return replace(features, unified=RuntimeSupport("ours"))


@pytest.mark.parametrize(
    ("files", "host_config", "features", "expected"),
    [
        pytest.param(NEWEST, LIMITED, CGROUPFS, {"memory.oom.group": "1"}, id="what the kernel and the engine do"),
        pytest.param(NEWEST, {}, CGROUPFS, {"memory.oom.group": "1", SWAP_FILE: "0"}, id="no memory limit, so swap"),
        pytest.param(
            NEWEST,
            LIMITED,
            SYSTEMD,
            {"memory.min": "0", "memory.low": "0", "memory.oom.group": "1"},
            id="systemd may have defaults for the slice",
        ),
        pytest.param({"memory.min": "1", "memory.low": "2", "memory.high": "3"}, {}, CGROUPFS, None, id="other values"),
        pytest.param(
            {"memory.high": "max", "memory.oom.group": "0", SWAP_FILE: "max"}, {}, CGROUPFS, {}, id="defaults"
        ),
        pytest.param({"memory.low": "0"}, {"MemoryReservation": 5}, CGROUPFS, None, id="a reservation is memory.low"),
        pytest.param({SWAP_FILE: "5"}, {"Memory": 7, "MemorySwap": 12}, SYSTEMD, {}, id="swap by the engine"),
        pytest.param({SWAP_FILE: "max"}, {"Memory": 7, "MemorySwap": -1}, SYSTEMD, {}, id="all swap by the engine"),
        pytest.param({SWAP_FILE: "5"}, {"Memory": 7, "MemorySwap": -1}, SYSTEMD, None, id="another swap"),
        pytest.param(PAGES, {}, CGROUPFS, None, id="huge pages"),
        pytest.param(PAGES, {}, replace(CGROUPFS, huge_pages=()), {}, id="no controller, nothing to limit"),
        pytest.param({"hugetlb.2MB.max": "5"}, {}, replace(CGROUPFS, huge_pages=()), None, id="pages without limits"),
        pytest.param({"hugetlb.2MB.limit_in_bytes": "0"}, {}, V1, None, id="huge pages of cgroup v1"),
        pytest.param({"io.max": "8:0 rbps=5"}, {}, CGROUPFS, None, id="another controller"),
    ],
)
def test_what_is_in_force_anyway_is_not_written(
    files: dict[str, str], host_config: dict[str, Any], features: Capabilities, expected: dict[str, str] | None
) -> None:
    assert to_write(files, host_config, features) == (files if expected is None else expected)
    # Without the runtime, the body stays as it is.
    assert specify(host_config, files, features) == host_config


@pytest.mark.parametrize(
    ("files", "host_config", "features", "expected", "left"),
    [
        pytest.param(NEWEST, LIMITED, CGROUPFS, {"memory.oom.group": "1"}, {}, id="kubelet 1.37"),
        pytest.param(NEWEST, {}, SYSTEMD, NEWEST, {}, id="kubelet 1.37, systemd, no limit"),
        pytest.param({"memory.high": "9"}, {}, CGROUPFS, {"memory.high": "9"}, {}, id="a throttling factor"),
        pytest.param(
            {"hugetlb.2MB.max": "0"},
            {},
            CGROUPFS,
            {"hugetlb.2MB.max": "0", "hugetlb.2MB.rsvd.max": "0"},
            {},
            id="huge pages",
        ),
        pytest.param(
            {"hugetlb.2MB.max": "0", "hugetlb.2MB.rsvd.max": "5"},
            {},
            CGROUPFS,
            {"hugetlb.2MB.max": "0"},
            {"hugetlb.2MB.rsvd.max": "5"},
            id="reserved huge pages of its own",
        ),
        pytest.param(
            {"hugetlb.2MB.max": "0"}, {}, replace(CGROUPFS, kernel=(5, 6)), {"hugetlb.2MB.max": "0"}, {}, id="Linux 5.6"
        ),
        pytest.param(
            {"hugetlb.64KB.max": "0"}, {}, CGROUPFS, {}, {"hugetlb.64KB.max": "0"}, id="pages of another size"
        ),
        pytest.param({"cgroup.freeze": "1"}, {}, CGROUPFS, {}, {"cgroup.freeze": "1"}, id="only for what runs"),
        pytest.param({"memory.max": "9"}, {}, CGROUPFS, {}, {"memory.max": "9"}, id="it would undo updates"),
        pytest.param({"memory.low": "0"}, {}, CGROUPFS, {}, {}, id="nothing to do"),
        pytest.param(NEWEST, {"Runtime": "kata"}, SYSTEMD, {}, NEWEST, id="another runtime"),
    ],
)
def test_what_kubelets_send_is_in_the_specification(
    files: dict[str, str],
    host_config: dict[str, Any],
    features: Capabilities,
    expected: dict[str, str],
    left: dict[str, str],
) -> None:
    features = with_runtime(features)
    made = specify(host_config, files, features)
    assert specified_files(made) == expected
    assert made.get("Runtime") == ("ours" if expected else host_config.get("Runtime"))
    assert to_write(files, made, features) == left


def test_other_members_and_annotations_stay() -> None:
    before = with_members({"Annotations": {"other": "x"}}, {"hooks": {"poststop": []}})
    features = with_runtime(SYSTEMD)
    made = specify(before, {"memory.high": "5"}, features)
    again = specify(made, {"memory.low": "6"}, features)
    assert read_members(again) == {"hooks": {"poststop": []}, "unified": {"memory.low": "6"}}
    assert again["Annotations"]["other"] == "x"
    assert specify(again, {}, features)["Annotations"] == before["Annotations"]
    assert ANNOTATION not in specify({"Runtime": "ours"}, {}, features).get("Annotations", {})


def test_what_an_update_sets_back_and_does_not_mean() -> None:
    every = reset_files({"CpuQuota": 5}, SYSTEMD)
    assert {"memory.high", "memory.low", "memory.oom.group", SWAP_FILE} <= set(every)
    assert set(every) - set(reset_files({"MemorySwap": 5}, SYSTEMD)) == {SWAP_FILE}
    # A plugin's, which runc writes into the file.
    assert set(every) - set(reset_files({"MemoryReservation": 5}, SYSTEMD)) == {"memory.low"}
    assert reset_files({"CpuQuota": 5}, CGROUPFS) == reset_files({"CpuQuota": 5}, V1) == []
