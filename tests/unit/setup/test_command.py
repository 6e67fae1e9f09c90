"""The whole command on a node in a folder: twice, undone, refused, and killed before and after each change."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from dockershim.changes.report import NOTHING
from dockershim.doctor.units import KUBELET_UNIT
from dockershim.setup.plan import Wishes
from tests.unit.changes.killable import Killed
from tests.unit.setup.node import BRIDGE_CALLS, CRICTL, DAEMON_JSON, SETTINGS, Node

EVERYTHING = Wishes("bridge", frozenset({"early-network", "user-namespaces"}))


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk's own power cuts are not tried here."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A folder in memory: a disk may write out each file that a rename puts in the place of another one."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        yield Path(folder)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_a_plan_changes_nothing(node: Node) -> None:
    before = node.state()
    code, printed = node.setup()
    assert code == 0
    assert node.state() == before
    assert node.ran == []
    for line in (
        '+    "live-restore": true,',
        "mount --make-rshared /",
        "modprobe br_netfilter",
        "--with=early-network",
    ):
        assert line in printed


def test_the_second_time_there_is_nothing_to_do(node: Node) -> None:
    code, printed = node.setup(apply=True)
    assert code == 0, printed
    assert not node.lost
    after = node.state()
    code, printed = node.setup(apply=True)
    assert (code, printed.splitlines()[-1]) == (0, NOTHING), printed
    assert NOTHING in node.setup()[1]
    assert node.state() == after


def test_undo_leaves_the_node_as_it_was(node: Node) -> None:
    before = node.state()
    assert node.setup(apply=True, wishes=EVERYTHING)[0] == 0
    assert node.state() != before
    code, printed = node.setup(undo=True)
    assert code == 0, printed
    # The engine runs a container, so it keeps what it has read until its next restart.
    assert "Docker is not restarted" in printed
    assert not node.lost
    node.engine = json.loads(SETTINGS)
    assert node.state() == before
    assert node.setup(undo=True) == (0, "nothing to undo\n")
    assert node.state() == before


def test_an_engine_without_containers_is_restarted_by_undo(node: Node) -> None:
    node.running = 0
    before = node.state()
    node.setup(apply=True)
    assert node.setup(undo=True)[0] == 0
    assert node.state() == before


def test_what_setup_makes_of_daemon_json(node: Node) -> None:
    node.setup(apply=True)
    content = node.get(DAEMON_JSON)
    assert content is not None
    assert content.startswith(SETTINGS.rstrip(b"\n}") + b",\n")
    document = json.loads(content)
    assert list(document)[:3] == ["storage-driver", "features", "debug"]
    assert document["live-restore"] is True
    assert document["log-opts"] == {"max-size": "32m", "max-file": "3"}
    assert document["runtimes"] == {"dockershim-runc": {"path": "/usr/local/bin/dockershim-runc"}}
    assert node.engine == document, "it was reloaded, and restarted"
    assert node.disk.at(DAEMON_JSON).stat().st_mode & 0o777 == 0o600


@pytest.mark.timeout(300)  # on a busy machine; it takes 3 s of CPU
@pytest.mark.parametrize("killed", ["apply", "undo"])
@pytest.mark.parametrize("then", ["apply", "undo"])
def test_killed_before_each_change_one_more_call_brings_it_to_either_side(
    tmp_path: Path, killed: str, then: str
) -> None:
    """The journal is on the disk, so these are also the changes of the journal."""
    # One step of each kind is enough.
    node = Node(tmp_path, running=0, shared=True)
    node.put(BRIDGE_CALLS, b"1\n")
    node.units.pop(KUBELET_UNIT)
    wishes = Wishes(features=frozenset({"early-network"}))
    # The server has made its folder: a program that is killed between making and noting it may leave it, empty.
    node.disk.at("/var/lib/dockershim").mkdir()

    def call(what: str) -> str:
        code, printed = node.setup(apply=what == "apply", undo=what == "undo", wishes=wishes, quiet=True)
        assert code == 0, printed
        return printed

    before = node.state()
    call("apply")
    applied, count = _without_journal(node.state()), {"apply": node.disk.changes}
    node.disk.revive()
    call("undo")
    count["undo"] = node.disk.changes
    assert node.state() == before
    assert min(count.values()) > 40
    for lives_for in range(count[killed]):
        if killed == "undo":
            call("apply")
        node.disk.revive()
        node.disk.lives_for = lives_for
        with pytest.raises(Killed):
            call(killed)
        node.disk.revive()
        call(then)
        if then == "apply":
            assert _without_journal(node.state()) == applied, f"killed before change {lives_for}"
            assert NOTHING in call("nothing")
            call("undo")
        assert node.state() == before, f"killed before change {lives_for}"


def _without_journal(state: dict[str, object]) -> dict[str, object]:
    return {path: value for path, value in state.items() if not path.startswith("var/lib/dockershim/setup/")}


def test_a_file_that_others_changed_after_setup_is_left_and_named(node: Node) -> None:
    node.setup(apply=True)
    node.put("/etc/crictl.yaml", b"mine: true\n")
    code, printed = node.setup(undo=True)
    assert code == 1
    assert "dockershim: /etc/crictl.yaml: was changed since, and stays as it is" in printed
    assert node.get("/etc/crictl.yaml") == b"mine: true\n"
    assert node.get(DAEMON_JSON) == SETTINGS
    saved = printed.rpartition("the file from before is ")[2].strip()
    assert node.get(saved) == CRICTL
    node.put("/etc/crictl.yaml", CRICTL)
    assert node.setup(undo=True)[0] == 0


def test_a_failed_step_ends_it_and_the_next_call_tries_again(node: Node) -> None:
    before = node.state()
    node.fails = "systemctl start"
    code, printed = node.setup(apply=True)
    assert code == 1
    assert "setup --yes tries it again, setup --undo undoes" in printed
    assert "interrupted: systemctl start" in node.setup()[1]
    node.fails = ""
    assert node.setup(apply=True)[0] == 0
    assert NOTHING in node.setup()[1]
    node.running = 0
    assert node.setup(undo=True)[0] == 0
    assert node.state() == before


def test_a_daemon_json_that_the_engine_refuses_is_not_written(node: Node) -> None:
    node.fails = "--validate"
    code, printed = node.setup(apply=True)
    assert code == 1
    assert f"{DAEMON_JSON}: is not changed, as the new content is refused" in printed
    assert node.get(DAEMON_JSON) == SETTINGS
    assert [path.name for path in node.disk.at("/etc/docker").iterdir()] == ["daemon.json"]
    node.fails = ""
    assert node.setup(apply=True)[0] == 0


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param(b'{"a": 1,}', "is not valid JSON", id="a comma too many"),
        pytest.param(b'{"a": 1, "a": 2}', "has the key 'a' twice", id="a key twice"),
        pytest.param(b'{"a": NaN}', "NaN", id="not a number"),
        pytest.param(b"[]", "must be a JSON object", id="a list"),
        pytest.param(b"\xff", "is not UTF-8", id="bytes"),
        pytest.param(b'{"log-opts": 1}', "'log-opts' must be an object", id="options of another type"),
        pytest.param(b"[" * 100_000, "is not valid JSON", id="nested"),
    ],
)
def test_an_invalid_daemon_json_is_refused_before_anything_changes(node: Node, content: bytes, message: str) -> None:
    node.put(DAEMON_JSON, content)
    before = node.state()
    for apply in (False, True):
        code, printed = node.setup(apply=apply)
        assert code == 1
        assert f"dockershim: {DAEMON_JSON}: " in printed
        assert message in printed
        assert "run setup again" in printed
    assert node.state() == before
    assert node.ran == []


@pytest.mark.parametrize("undo", [False, True], ids=["setup", "undo"])
def test_two_at_once(node: Node, undo: bool) -> None:
    answers = []

    def again() -> None:
        answers.append(node.setup(apply=not undo, undo=undo))

    node.meanwhile = again
    assert node.setup(apply=True)[0] == 0
    assert {code for code, _ in answers} == {1}
    assert all("another process is changing this machine" in printed for _, printed in answers)


def test_undo_waits_for_containers_that_need_the_runtime(node: Node) -> None:
    node.setup(apply=True)
    after = node.state()
    node.users = ("k8s_a_b",)
    code, printed = node.setup(undo=True)
    assert code == 1
    assert "1 containers use the runtime dockershim-runc" in printed
    assert "Drain the node" in printed
    assert node.state() == after
