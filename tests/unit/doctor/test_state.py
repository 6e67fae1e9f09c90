"""What doctor says of what is left on the node."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

from checkpoints import Checkpoint, Store
from dockershim.api.cri.v1 import api_pb2 as cri
from dockershim.doctor.node_files import answers
from dockershim.doctor.state import (
    check_checkpoints,
    check_cri_dockerd,
    check_hooks,
    check_pins,
    check_stuck,
    reachable,
)
from dockershim.hooks.config import Reading, read_folder
from tests.unit.doctor.levels import fixes, levels

NOW = 1_000_000.0
UNIT = "a.service"


def test_damaged_checkpoints_are_named_and_not_touched(tmp_path: Path) -> None:
    assert levels(check_checkpoints(tmp_path, UNIT)) == {"checkpoints": "ok"}
    Store(tmp_path / "sandbox").write(Checkpoint("abc", "pod", "ns"))
    assert levels(check_checkpoints(tmp_path, UNIT)) == {"checkpoints": "ok"}
    (tmp_path / "sandbox/torn").write_bytes(b"\0" * 99)
    findings = list(check_checkpoints(tmp_path, UNIT))
    assert levels(findings) == {"checkpoints": "warn"}
    assert "sandbox/torn" in findings[0].message
    assert f"systemctl restart {UNIT}" in fixes(findings)
    assert (tmp_path / "sandbox/torn").exists()
    Store(tmp_path / "sandbox").load_all()
    findings = list(check_checkpoints(tmp_path, UNIT))
    assert levels(findings) == {"checkpoints": "warn"}
    assert f"rm -r {tmp_path}/damaged" in fixes(findings)


def test_a_root_directory_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "sandbox").touch()
    assert levels(check_checkpoints(tmp_path, UNIT)) == {"checkpoints": "fail"}


def sandbox(name: str, age: float, state: Any = cri.SANDBOX_NOTREADY) -> cri.PodSandbox:
    metadata = cri.PodSandboxMetadata(name=name, namespace="ns")
    return cri.PodSandbox(id=f"id-{name}", metadata=metadata, state=state, created_at=int((NOW - age) * 1e9))


@pytest.mark.parametrize(
    ("sandboxes", "containers", "level"),
    [
        pytest.param([sandbox("old", 3601)], [], "warn", id="stuck"),
        pytest.param([sandbox("new", 3599)], [], "ok", id="new"),
        pytest.param([sandbox("ready", 9999, cri.SANDBOX_READY)], [], "ok", id="ready"),
        pytest.param([sandbox("done", 9999)], [cri.Container(pod_sandbox_id="id-done")], "ok", id="with containers"),
        pytest.param(None, [], None, id="not known"),
    ],
)
def test_stuck_pods(sandboxes: list[cri.PodSandbox] | None, containers: list[cri.Container], level: str | None) -> None:
    findings = list(check_stuck(sandboxes, containers, NOW))
    assert levels(findings) == ({"stuck pods": level} if level else {})
    assert ("crictl rmp --force id-old" in fixes(findings)) is (level == "warn")


@pytest.mark.parametrize(
    ("before", "after", "known", "level"),
    [
        pytest.param({"a"}, {"a"}, {"a", "b"}, "ok", id="of a pod"),
        pytest.param({"a"}, {"a"}, set(), "warn", id="of a pod that is gone"),
        pytest.param(set(), {"a"}, set(), "ok", id="of a pod that comes"),
        pytest.param({"a"}, set(), set(), "ok", id="of a pod that goes"),
        pytest.param({"a"}, {"a"}, None, None, id="not known"),
    ],
)
def test_pins(before: set[str], after: set[str], known: set[str] | None, level: str | None) -> None:
    findings = list(check_pins(before, after, known, UNIT))
    assert levels(findings) == ({"network namespaces": level} if level else {})
    assert (f"systemctl restart {UNIT}" in fixes(findings)) is (level == "warn")


def hook(folder: Path, name: str, endpoint: Path, policy: str) -> None:
    (folder / name).write_text(f'{{"remote-endpoint": "{endpoint}", "failure-policy": "{policy}"}}')


def test_hook_servers(tmp_path: Path) -> None:
    def look() -> dict[str, str]:
        reading = read_folder(tmp_path, Reading())
        return levels(check_hooks(reading, reachable(reading.servers), tmp_path))

    assert look() == {"hook servers": "ok"}
    hook(tmp_path, "a.json", tmp_path / "a.sock", "Ignore")
    assert look() == {"hook servers": "warn"}
    hook(tmp_path, "a.json", tmp_path / "a.sock", "Fail")
    assert look() == {"hook servers": "fail"}
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "a.sock"))
        listener.listen()
        assert answers(str(tmp_path / "a.sock"))
        assert look() == {"hook servers": "ok"}
    hook(tmp_path, "a.json", tmp_path / "a.sock", "Maybe")
    assert look() == {"hook servers": "warn"}


@pytest.mark.parametrize(
    ("units", "sockets", "checkpoints", "adopts", "fix"),
    [
        pytest.param([], [], 0, False, "", id="nothing"),
        pytest.param([], [], 3, True, "", id="adopted"),
        pytest.param([], [], 3, False, "--adopt-from=/var/lib/cri-dockerd", id="not adopted"),
        pytest.param(["cri-docker.service"], [], 0, False, "disable --now cri-docker.service", id="active"),
        pytest.param([], [Path("/run/a.sock")], 0, False, "ss -lxp src /run/a.sock", id="without a unit"),
    ],
)
def test_leftovers_of_cri_dockerd(
    units: list[str], sockets: list[Path], checkpoints: int, adopts: bool, fix: str
) -> None:
    findings = list(check_cri_dockerd(units, sockets, checkpoints, adopts=adopts))
    assert levels(findings) == {"cri-dockerd": "warn" if fix else "ok"}
    assert fix in fixes(findings)
