"""What cri-dockerd gets of us, and what it cannot do with it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dockershim.changes.disk import ChangeError, Disk
from dockershim.doctor import units
from dockershim.doctor.units import Unit
from dockershim.migrate import way_back
from dockershim.translate.labels import EXTRA_LABEL, SANDBOX_TYPE, TYPE_LABEL

OURS, THEIRS = "/var/lib/dockershim/sandbox", "/var/lib/cri-dockerd/sandbox"


def test_checkpoints_are_moved_with_their_modes(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    ours, theirs = disk.at(OURS), disk.at(THEIRS)
    ours.mkdir(parents=True)
    for name, content in (("a", "of ours"), ("b", "new"), (".tmp-c", "cut off")):
        (ours / name).write_text(content)
        (ours / name).chmod(0o600)
    way_back.hand_over(disk, OURS, THEIRS)
    (ours / "b").write_text("again, after a crash")
    way_back.hand_over(disk, OURS, THEIRS)
    assert {path.name: path.read_text() for path in theirs.iterdir()} == {"a": "of ours", "b": "again, after a crash"}
    assert (theirs / "a").stat().st_mode & 0o777 == 0o600
    assert [path.name for path in ours.iterdir()] == [".tmp-c"]


def test_nothing_to_move(tmp_path: Path) -> None:
    way_back.hand_over(Disk(tmp_path), OURS, THEIRS)
    assert list(tmp_path.iterdir()) == []


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    disk.at(OURS).mkdir(parents=True)
    (disk.at(OURS) / "a").symlink_to("/etc/shadow")
    with pytest.raises(ChangeError, match=f"{OURS}/a: is a symbolic link"):
        way_back.hand_over(disk, OURS, THEIRS)


@pytest.mark.parametrize(
    ("unit", "said"),
    [
        pytest.param(None, "does not exist, so cri-dockerd cannot be started", id="removed"),
        pytest.param(Unit("a.service", enabled="masked"), "is masked", id="masked"),
        pytest.param(Unit("a.service", command=("/none",)), "its program /none does not exist", id="no program"),
        pytest.param(Unit("a.service", command=("/bin/sh",)), "", id="there"),
        pytest.param(Unit("a.socket"), "", id="a socket"),
    ],
)
def test_units_that_can_be_started(monkeypatch: pytest.MonkeyPatch, unit: Unit | None, said: str) -> None:
    name = unit.name if unit else "a.service"
    monkeypatch.setattr(units, "show", lambda _: {name: unit} if unit else {})
    if said:
        with pytest.raises(ChangeError, match=said):
            way_back.check_startable([name])
    else:
        way_back.check_startable([name])


def container(name: str, state: str = "running", *, sandbox: bool = False, **extra: Any) -> dict[str, Any]:
    labels = {EXTRA_LABEL: json.dumps({"v": 2, "keys": ["a"], **extra})} if extra else {}
    return {"Names": [f"/{name}"], "State": state, "Labels": labels | ({TYPE_LABEL: SANDBOX_TYPE} if sandbox else {})}


def test_losses() -> None:
    hidden = ["a_b", "default", "uid", 0]
    listed = [
        container("k8s_main_web", log="cri"),
        container("k8s_ended_web", "exited", log="cri"),
        container("k8s_theirs_web"),
        container("k8s_POD_a-b", sandbox=True, metadata=hidden),
        container("k8s_docker_web", image="a"),
    ]
    lines = list(way_back._of_labels(listed))
    assert lines == [
        "1 containers (k8s_main_web) write no more to kubectl logs, only to docker logs, until they are replaced",
        "1 containers (k8s_POD_a-b) have names that cri-dockerd cannot read: the kubelet would make their pods again",
    ]
    [line] = way_back._of_labels([container(f"c{number}", log="cri") for number in range(6)])
    assert line.startswith("6 containers (c0, c1, c2, c3, c4, ...)")


@pytest.mark.parametrize("listed", [None, [], {}, [{}], [{"Labels": None, "Names": None}]])
def test_any_list(listed: Any) -> None:
    assert list(way_back._of_labels(listed)) == []
