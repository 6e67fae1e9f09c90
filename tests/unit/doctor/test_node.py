"""What doctor says of mounts, disks, inotify and security modules."""

from __future__ import annotations

import errno
from dataclasses import replace
from pathlib import Path

import pytest

from dockershim.common.mountinfo import parse
from dockershim.doctor.node import (
    KUBELET,
    Space,
    check_inotify,
    check_propagation,
    check_space,
    kernel_lsms,
    measure,
    try_to_watch,
)
from tests.unit.doctor.levels import fixes, levels

ROOT, OF_KUBELET = "1 0 8:1 / / rw {}- ext4 /dev/a rw\n", "2 1 8:2 / /var/lib/kubelet rw {}- ext4 /dev/b rw\n"
SHARED = "shared:1 "


@pytest.mark.parametrize(
    ("mountinfo", "level", "fix"),
    [
        pytest.param(ROOT.format(SHARED), "ok", "", id="shared"),
        pytest.param(ROOT.format("master:1 shared:2 "), "ok", "", id="shared and a slave"),
        pytest.param(ROOT.format(""), "fail", "mount --make-rshared /", id="private"),
        pytest.param(ROOT.format("") + OF_KUBELET.format(SHARED), "warn", "mount --make-rshared /", id="only /"),
        pytest.param(
            ROOT.format(SHARED) + OF_KUBELET.format(""),
            "fail",
            "make-rshared /var/lib/kubelet",
            id="the kubelet's",
        ),
        pytest.param(ROOT.format("") + ROOT.format(SHARED), "ok", "", id="mounted over"),
        pytest.param("odd\n\n1 2 3\n", "ok", "", id="odd"),
    ],
)
def test_mount_propagation(mountinfo: str, level: str, fix: str) -> None:
    findings = list(check_propagation(parse(mountinfo.encode().split(b"\n")), [Path("/"), KUBELET]))
    assert levels(findings) == {"mount propagation": level}
    assert fix in fixes(findings)


GOOD = Space(device=1, free=80, size=100, free_inodes=80, inodes=100, read_only=False)


@pytest.mark.parametrize(
    ("space", "level", "fix"),
    [
        pytest.param(GOOD, "ok", "", id="good"),
        pytest.param(replace(GOOD, free=14), "warn", "du -x --max", id="scarce"),
        pytest.param(replace(GOOD, free=0), "fail", "du -x --max", id="full"),
        pytest.param(replace(GOOD, free_inodes=1), "fail", "du -x --inodes", id="no inodes"),
        pytest.param(replace(GOOD, free_inodes=0, inodes=0), "ok", "", id="a file system without inodes"),
        pytest.param(replace(GOOD, read_only=True), "fail", "remount,rw", id="read-only"),
        pytest.param(None, "warn", "df '/a b'", id="not known"),
    ],
)
def test_disk_space(space: Space | None, level: str, fix: str) -> None:
    findings = list(check_space({"logs": (Path("/a b"), space)}))
    assert levels(findings) == {"disk space": level}
    assert fix in fixes(findings)


def test_one_file_system_is_told_once() -> None:
    other = replace(GOOD, device=2, free=1)
    places = {"logs": (Path("/a"), GOOD), "images": (Path("/b"), other), "checkpoints": (Path("/c"), GOOD)}
    first, second = check_space(places)
    assert "logs /a, checkpoints /c" in first.message
    assert (second.level, second.fix) == ("fail", "docker image prune --all")


def test_space_is_that_of_the_next_folder_that_exists(tmp_path: Path) -> None:
    found, expected = measure(tmp_path / "a/b"), measure(tmp_path)
    assert found is not None
    assert expected is not None
    assert found.device == expected.device == tmp_path.stat().st_dev
    assert found.size > 0


@pytest.mark.parametrize(
    ("instances", "watches", "problem", "level", "fix"),
    [
        pytest.param("128\n", "8192\n", None, "ok", "", id="good"),
        pytest.param("127\n", "8192\n", None, "warn", "max_user_instances=", id="few instances"),
        pytest.param("128\n", "100\n", None, "warn", "max_user_watches=", id="few watches"),
        pytest.param("128\n", "8192\n", errno.EMFILE, "fail", "max_user_instances=", id="no instance left"),
        pytest.param("128\n", "8192\n", errno.ENOSPC, "fail", "max_user_watches=", id="no watch left"),
    ],
)
def test_inotify(instances: str, watches: str, problem: int | None, level: str, fix: str, tmp_path: Path) -> None:
    folder = tmp_path / "fs/inotify"
    folder.mkdir(parents=True)
    (folder / "max_user_instances").write_text(instances)
    (folder / "max_user_watches").write_text(watches)
    findings = list(check_inotify(tmp_path, problem))
    assert levels(findings) == {"inotify": level}
    assert fix in fixes(findings)


def test_a_watch_is_tried(tmp_path: Path) -> None:
    assert try_to_watch(tmp_path) is None
    assert try_to_watch(tmp_path / "none") == errno.ENOENT


def test_the_kernels_security_modules(tmp_path: Path) -> None:
    assert "apparmor" not in kernel_lsms(tmp_path)
    enabled = tmp_path / "module/apparmor/parameters/enabled"
    enabled.parent.mkdir(parents=True)
    enabled.write_text("Y\n")
    (tmp_path / "fs/selinux").mkdir(parents=True)
    (tmp_path / "fs/selinux/enforce").touch()
    assert {"apparmor", "selinux"} <= set(kernel_lsms(tmp_path))
