"""The whole command on a node in memory: there and back, refused, returned by itself, and killed at each change."""

from __future__ import annotations

import msgspec
import pytest

from dockershim.changes.disk import ChangeError
from dockershim.changes.journal import Journal
from dockershim.doctor.server import UNIT
from dockershim.doctor.units import KUBELET_UNIT, SOCKET_UNIT
from dockershim.migrate.command import DONE, FAILED, HALF_WAY, INTERRUPTED
from dockershim.migrate.pods import Pods
from tests.unit.migrate.node import (
    CONFIG,
    CRICTL,
    FILES,
    FLAGS_ENV,
    INSTANCE,
    OLD,
    OLD_PATH,
    OLD_ROOT,
    OLD_SOCKET,
    PODS,
    ROOT,
    SOCKET_DROP_IN,
    Node,
)

FD = ("/usr/bin/dockershim", "serve", "--container-runtime-endpoint=fd://")
each_way = pytest.mark.parametrize("keep_socket", [False, True], ids=["new socket", "kept socket"])
each_unit = pytest.mark.parametrize("command", [Node().command, FD], ids=["own socket", "systemd's socket"])


def text(node: Node, path: str) -> str:
    return node.disk.files[path].content.decode()


def without_a_container(pods: Pods) -> Pods:
    return msgspec.structs.replace(pods, containers=dict(list(pods.containers.items())[1:]))


def test_a_plan_changes_nothing() -> None:
    node = Node.made()
    before = node.copied().state()
    code, printed = node.run()
    assert code == DONE
    assert node.state() == before
    assert node.ran == []
    for line in (
        "2 pods and 2 running containers",
        "+containerRuntimeEndpoint: unix:///run/dockershim.sock",
        "systemctl stop cri-docker.socket cri-docker.service",
        "nothing was changed",
    ):
        assert line in printed


@each_unit
@each_way
def test_there_and_back(keep_socket: bool, command: tuple[str, ...]) -> None:
    node = Node.made(command=command)
    before = node.copied().state()
    code, printed = node.run(apply=True, keep_socket=keep_socket)
    assert code == DONE, printed
    assert (node.runs(UNIT), node.runs(OLD), node.runs(OLD_SOCKET)) == (True, False, False)
    assert node.runs(SOCKET_UNIT) == (command == FD)
    assert node.runs(KUBELET_UNIT)
    assert [node.units[name][0] for name in (UNIT, OLD, OLD_SOCKET)] == ["enabled", "disabled", "disabled"]
    assert node.reported(f"unix://{OLD_PATH}" if keep_socket else "unix:///run/dockershim.sock") == PODS
    assert node.settings()["adopt_from"] == [OLD_ROOT]
    if keep_socket:
        assert {path: text(node, path) for path in FILES} == FILES
    else:
        assert text(node, CONFIG) == FILES[CONFIG].replace("/var/run/cri-dockerd", "/run/dockershim")
        assert text(node, INSTANCE) == 'containerRuntimeEndpoint: "unix:///run/dockershim.sock"\n'
        assert text(node, CRICTL) == "runtime-endpoint: unix:///run/dockershim.sock\ntimeout: 10 # s\n"
    assert node.run(apply=True)[1].startswith("nothing to do: this node has moved to dockershim")
    assert "migrate --back would undo, in this order:" in node.run()[1]
    # A pod that dockershim has made.
    node.disk.put(f"{ROOT}/sandbox/3", b'{"ours": 1}', 0o600)
    code, printed = node.run(back=True)
    assert code == DONE, printed
    after = node.state()
    assert after.pop(f"{OLD_ROOT}/sandbox/3") is not None, "cri-dockerd needs it to remove the pod"
    after["folders"] = node.disk.folders - {f"{ROOT}/sandbox"}
    assert after == before
    assert node.run(back=True)[1].startswith("nothing to return from")


def test_the_kubelet_sees_no_pods_change_hands() -> None:
    node = Node.made()
    node.run(apply=True)
    commands = [line for line in node.ran if "start" in line or "stop" in line]
    assert commands == [
        "systemctl stop kubelet.service",
        "systemctl stop cri-docker.socket cri-docker.service",
        "systemctl start dockershim.service",
        "systemctl start kubelet.service",
    ]


@each_way
@pytest.mark.parametrize("killed", ["apply", "back"])
def test_killed_at_each_change_one_more_call_brings_it_to_either_side(killed: str, keep_socket: bool) -> None:
    """The journal is on the disk, so these are also the changes of the journal."""
    node = Node.made(command=FD)
    before = node.copied()
    if killed == "back":
        assert node.run(apply=True, keep_socket=keep_socket)[0] == DONE
    left: list[Node] = []
    node.watch = left.append
    assert node.run(apply=killed == "apply", back=killed == "back", keep_socket=keep_socket, quiet=True)[0] == DONE
    applied = before.copied()
    assert applied.run(apply=True, keep_socket=keep_socket, quiet=True)[0] == DONE
    assert len(left) > 60
    for number, dead in enumerate(left):
        where = f"killed before change {number}"
        forward, back = dead.copied(), dead
        code, printed = forward.run(apply=True, keep_socket=keep_socket, quiet=True)
        assert (code, forward.side()) == (DONE, applied.side()), f"{where}: {printed}"
        assert Journal(f"{ROOT}/migrate", forward.disk).note == ""
        assert forward.run(back=True, quiet=True)[0] == DONE, where
        assert forward.state() == before.state(), where
        code, printed = back.run(back=True, quiet=True)
        assert (code, back.state()) == (DONE, before.state()), f"{where}: {printed}"


def test_it_returns_by_itself_if_dockershim_reports_other_pods() -> None:
    node = Node.made(ours=without_a_container)
    before = node.copied().state()
    code, printed = node.run(apply=True)
    assert code == FAILED
    assert "container main of pod default/web-1 (c000000000000) ran, and does not exist any more" in printed
    assert "The node returns to cri-dockerd" in printed
    assert "systemctl start kubelet.service" in node.ran
    assert node.state() == before


def test_what_was_harmed_is_named_and_the_node_returns_all_the_same() -> None:
    """A container is restarted once the kubelet uses dockershim. What was there before is not forgotten."""
    node = Node.made()

    def restarted(pods: Pods) -> Pods:
        if KUBELET_UNIT not in node.ran[-1]:
            return pods
        [(_, container), *rest] = pods.containers.items()
        again = msgspec.structs.replace(container, attempt=1)
        node.pods = msgspec.structs.replace(pods, containers={"d": again, **dict(rest)})
        return node.pods

    before = node.copied().state()
    node.ours = restarted
    code, printed = node.run(apply=True)
    said = "does not report what was there before: container main of pod default/web-1 (c000000000000) was restarted"
    assert f"dockershim: unix:///run/dockershim.sock {said}. The node returns" in printed
    assert printed.count(f"dockershim: unix:///run/cri-dockerd.sock {said}") == 2
    assert code == FAILED
    assert node.state() == before


@pytest.mark.parametrize("fails", ["start dockershim", "stop cri-docker", "enable", "disable", "stop kubelet"])
def test_it_returns_by_itself_if_a_command_fails(fails: str) -> None:
    node = Node.made(fails=fails)
    before = node.copied()
    code, printed = node.run(apply=True)
    assert code in (FAILED, HALF_WAY), printed
    assert [node.runs(name) for name in (OLD, OLD_SOCKET, KUBELET_UNIT, UNIT)] == [True, True, True, False]
    node.fails = "nothing fails"
    assert node.run(back=True)[0] == DONE
    assert node.state() == before.state()


def test_it_returns_by_itself_if_the_kubelet_is_not_ready() -> None:
    node = Node.made(not_ready_with_ours="PLEG is not healthy")
    before = node.copied().state()
    code, printed = node.run(apply=True)
    assert code == FAILED
    assert "the kubelet is not Ready after 120 s: PLEG is not healthy. The node returns to cri-dockerd" in printed
    assert node.state() == before


def test_a_way_back_that_fails_leaves_the_node_with_dockershim() -> None:
    node = Node.made()
    assert node.run(apply=True)[0] == DONE
    moved = node.copied().side()
    node.theirs = without_a_container
    code, printed = node.run(back=True)
    assert code == FAILED
    assert "The node stays with dockershim" in printed
    assert node.side() == moved
    node.fails = "start cri-docker"
    assert node.run(back=True)[0] == FAILED
    assert node.side() == moved
    node.fails = "nothing fails"
    del node.units[OLD_SOCKET]
    code, printed = node.run(back=True)
    assert (code, node.runs(UNIT)) == (FAILED, True)
    assert "cri-docker.socket: does not exist, so cri-dockerd cannot be started" in printed


def test_a_node_that_neither_side_serves_says_so() -> None:
    node = Node.made()
    assert node.run(apply=True)[0] == DONE
    node.fails = "systemctl st"
    code, printed = node.run(back=True)
    assert code == HALF_WAY
    assert "migrate --yes goes on, migrate --back returns" in printed
    assert "a move was interrupted" in node.run()[1]
    node.fails = "nothing fails"
    assert node.run(apply=True)[0] == DONE
    assert node.runs(UNIT)


def test_pods_that_come_and_go_between_two_moves_are_no_differences() -> None:
    node = Node.made()
    assert node.run(apply=True)[0] == DONE
    node.pods = without_a_container(msgspec.structs.replace(node.pods, pods={}))
    assert node.run(back=True)[0] == DONE
    assert node.run(apply=True)[0] == DONE


def test_files_that_others_have_changed_since_get_the_old_socket_back() -> None:
    """As an upgrade by kubeadm writes them."""
    node = Node.made()
    assert node.run(apply=True)[0] == DONE
    node.disk.put(CONFIG, b"maxPods: 7\ncontainerRuntimeEndpoint: unix:///run/dockershim.sock\n")
    code, printed = node.run(back=True)
    assert code == DONE, printed
    assert text(node, CONFIG) == "maxPods: 7\ncontainerRuntimeEndpoint: unix:///var/run/cri-dockerd.sock\n"


def test_a_file_that_names_neither_socket_any_more_is_left_and_named() -> None:
    node = Node.made()
    assert node.run(apply=True)[0] == DONE
    moved = node.copied().side()
    node.disk.put(CRICTL, b"mine: true\n")
    code, printed = node.run(back=True)
    assert code == FAILED
    assert "/etc/crictl.yaml: was changed since, and stays as it is" in printed
    assert text(node, CRICTL) == "mine: true\n"
    node.disk.put(CRICTL, moved[CRICTL].content)  # type: ignore[attr-defined]
    assert node.run(back=True)[0] == DONE


def test_setup_and_migrate_do_not_run_at_once_and_have_journals_of_their_own() -> None:
    node = Node.made()
    with Journal(f"{ROOT}/setup", node.disk).locked():
        code, printed = node.run(apply=True)
    assert (code, node.ran) == (FAILED, [])
    assert "another process is changing this machine" in printed
    assert node.run(apply=True)[0] == DONE
    assert Journal(f"{ROOT}/setup", node.disk).entries == ()


def test_ctrl_c() -> None:
    node = Node.made()

    def interrupt(_: Pods) -> Pods:
        raise KeyboardInterrupt

    before = node.copied().state()
    node.ours = interrupt
    code, printed = node.run(apply=True)
    assert code == INTERRUPTED
    assert "migrate --yes goes on" in printed
    assert "a move was interrupted" in node.run()[1]
    node.ours = lambda pods: pods
    assert node.run(back=True)[0] == DONE
    assert node.state() == before


def test_a_node_that_is_not_ready_is_not_moved() -> None:
    node = Node.made(not_ready="no network")
    for apply in (False, True):
        code, printed = node.run(apply=apply)
        assert code == FAILED
        assert "Node a is not Ready (no network); fix that first" in printed
    assert node.ran == []


def test_a_server_that_does_not_answer_is_not_moved() -> None:
    def hangs(_: Pods) -> Pods:
        raise ChangeError("unix:///run/cri-dockerd.sock: the pods cannot be read: DEADLINE_EXCEEDED")

    node = Node.made(theirs=hangs)
    assert node.run(apply=True)[0] == FAILED
    assert node.ran == []


@pytest.mark.parametrize(
    ("more", "keep_socket", "said"),
    [
        pytest.param({"annotation": "unix:///var/run/cri-dockerd.sock"}, False, "kubectl annotate node a", id="there"),
        pytest.param({"annotation": "unix:///var/run/cri-dockerd.sock"}, True, "", id="kept"),
        pytest.param({}, False, "", id="new kubeadm"),
        pytest.param({"readable": False}, False, "kubectl annotate node NAME", id="not known"),
    ],
)
def test_the_annotation_of_kubeadm(more: dict[str, object], keep_socket: bool, said: str) -> None:
    printed = Node.made(**more).run(keep_socket=keep_socket)[1]
    wanted = "--overwrite kubeadm.alpha.kubernetes.io/cri-socket=unix:///run/dockershim.sock"
    assert (said in printed and wanted in printed) if said else "kubectl" not in printed


def test_what_cri_dockerd_cannot_do_is_said_before_a_way_back() -> None:
    node = Node.made(losses=["3 containers need dockershim-runc"])
    assert node.run(apply=True)[0] == DONE
    assert "note: 3 containers need dockershim-runc" in node.run()[1]
    printed = node.run(back=True)[1]
    assert printed.index("dockershim-runc") < printed.index("undo: ")


def test_the_socket_of_systemd_is_moved_with_its_group() -> None:
    node = Node.made(command=FD)
    node.run(apply=True, keep_socket=True)
    assert text(node, SOCKET_DROP_IN).splitlines()[1:] == [
        "[Socket]",
        "ListenStream=",
        "ListenStream=/run/cri-dockerd.sock",
        "SocketGroup=docker",
    ]
    assert text(node, FLAGS_ENV) == FILES[FLAGS_ENV]
