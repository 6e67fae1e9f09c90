"""The plan of a move: what is read of cri-dockerd and the kubelet, what it makes of it, and what is refused."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dockershim.changes.steps import Call, Refused, Run, WriteFile
from dockershim.doctor.server import UNIT
from dockershim.doctor.units import KUBELET_UNIT, SOCKET_UNIT, Unit
from dockershim.migrate.facts import Facts
from dockershim.migrate.plan import HAND_OVER, Plan, make_plan
from dockershim.server import config
from tests.unit.migrate.node import (
    CONFIG,
    FILES,
    FLAGS_ENV,
    INSTANCE,
    OLD,
    OLD_SOCKET,
    SETTINGS,
    Node,
)

SERVICE = "cri-dockerd.service"
ENDPOINT = "--container-runtime-endpoint"


def plan(facts: Facts, *, keep_socket: bool = False) -> Plan:
    return make_plan(facts, keep_socket=keep_socket)


def with_words(*flags: str, program: str = "/usr/bin/cri-dockerd") -> Node:
    return Node.made(old_words=[program, *flags])


def with_kubelet(*flags: str) -> Facts:
    facts = Node.made().facts()
    return replace(facts, words={**facts.words, KUBELET_UNIT: ["kubelet", *flags]})


def with_unit(facts: Facts, name: str, **changes: Any) -> Facts:
    unit = facts.units.get(name, Unit(name))
    return replace(facts, units={**facts.units, name: replace(unit, **changes)})


def without_unit(facts: Facts, name: str) -> Facts:
    return replace(facts, units={key: unit for key, unit in facts.units.items() if key != name})


def commands(found: Plan) -> list[str]:
    return [str(step) for step in found.steps if isinstance(step, Run)]


def paths(found: Plan) -> list[str]:
    return [step.path for step in found.steps if isinstance(step, WriteFile)]


@pytest.mark.parametrize(
    ("flags", "wanted"),
    [
        pytest.param((), {"adopt_from": (Path("/var/lib/cri-dockerd"),)}, id="none"),
        pytest.param(
            ("--cri-dockerd-root-directory=/srv/state", "--network-plugin", "", "--cni-bin-dir", "/a,/b"),
            {"adopt_from": (Path("/srv/state"),), "network_plugin": "docker", "cni_bin_dir": (Path("/a"), Path("/b"))},
            id="lists and an old name",
        ),
        pytest.param(
            ("--cri-dockerd-root-directory=/var/lib/dockershim", "--log-level=trace"),
            {"log_level": "debug"},
            id="its root directory is ours",
        ),
        pytest.param(
            ("--image-pull-progress-deadline=2m", "--runtime-request-timeout=0s", "--streaming-bind-addr=10.0.0.1"),
            {
                "image_pull_progress_deadline": 120.0,
                "runtime_request_timeout": 120.0,
                "streaming_bind_addr": "10.0.0.1:0",
                "adopt_from": (Path("/var/lib/cri-dockerd"),),
            },
            id="durations and addresses",
        ),
        pytest.param(
            ("--ipv6-dual-stack", "--runtime-cgroups=/a", "--pod-infra-container-image=k8s/pause:3.10"),
            {"pod_infra_container_image": "k8s/pause:3.10", "adopt_from": (Path("/var/lib/cri-dockerd"),)},
            id="without effect",
        ),
    ],
)
def test_flags_become_a_drop_in_that_the_server_reads(
    tmp_path: Path, flags: tuple[str, ...], wanted: Mapping[str, object]
) -> None:
    steps = plan(with_words(*flags).facts()).steps
    [content] = [step.content for step in steps if isinstance(step, WriteFile) and step.path == SETTINGS] or [b""]
    (tmp_path / "config.toml").write_bytes(content)
    read = config.load({}, {}, tmp_path / "config.toml")
    default = config.Config()
    changed = {key: getattr(read, key) for key in wanted}
    assert changed == wanted
    others = [one.key for one in config.OPTIONS if one.key not in wanted]
    assert {key: getattr(read, key) for key in others} == {key: getattr(default, key) for key in others}
    assert len(re.findall(r"^\w+ = ", content.decode(), re.MULTILINE)) >= len(wanted)


def test_roots_that_are_adopted_already_stay() -> None:
    node = Node.made()
    facts = replace(node.facts(), config=replace(config.Config(), adopt_from=(Path("/srv/in-tree"),)))
    [step] = [step for step in plan(facts).steps if isinstance(step, WriteFile) and step.path == SETTINGS]
    assert b'adopt_from = ["/srv/in-tree", "/var/lib/cri-dockerd"]' in step.content


def test_a_root_directory_that_both_have_needs_no_hand_over() -> None:
    steps = plan(with_words("--cri-dockerd-root-directory=/var/lib/dockershim").facts()).steps
    assert HAND_OVER not in map(str, steps)
    assert HAND_OVER in map(str, plan(Node.made().facts()).steps)
    found = plan(Node.made(command=("dockershim", "serve", "--root-directory=/srv/ours")).facts())
    [step] = [step for step in found.steps if isinstance(step, Call) and step.name == HAND_OVER]
    assert step.arguments == ("/srv/ours/sandbox", "/var/lib/cri-dockerd/sandbox")


def test_kubesprays_units() -> None:
    node = with_words(ENDPOINT, "unix:///var/run/cri-dockerd.sock", program="/usr/local/bin/cri-dockerd")
    facts = node.facts()
    units = dict(facts.units)
    units[SERVICE] = replace(units.pop(OLD), name=SERVICE, triggered_by=["cri-dockerd.socket"])
    units["cri-dockerd.socket"] = replace(
        units.pop(OLD_SOCKET), name="cri-dockerd.socket", needed_by=frozenset({SERVICE, "sockets.target"})
    )
    found = plan(replace(facts, units=units, words={**facts.words, SERVICE: facts.words[OLD]}))
    assert "systemctl stop cri-dockerd.socket cri-dockerd.service" in commands(found)
    assert found.old == "unix:///run/cri-dockerd.sock"


def test_a_socket_unit_that_is_not_active_is_not_started_by_the_way_back() -> None:
    node = with_words("--container-runtime-endpoint=unix:///run/cri-dockerd.sock")
    found = plan(with_unit(node.facts(), OLD_SOCKET, state="inactive"))
    [stop] = [step for step in found.steps if isinstance(step, Run) and str(step).startswith("systemctl stop cri-d")]
    assert str(stop) == f"systemctl stop {OLD}"
    assert list(map(str, stop.undo)) == [f"systemctl start {OLD}"]


def test_where_the_kubelet_has_its_endpoint() -> None:
    node = Node.made()
    assert paths(plan(node.facts())) == [SETTINGS, CONFIG, INSTANCE, "/etc/crictl.yaml"]
    node.disk.put(CONFIG, b"")
    node.disk.put(FLAGS_ENV, b'A="--container-runtime-endpoint=unix:///var/run/cri-dockerd.sock"\n')
    facts = node.facts()
    words = {**facts.words, KUBELET_UNIT: ["kubelet", "--container-runtime-endpoint=unix:///var/run/cri-dockerd.sock"]}
    found = plan(replace(facts, words=words))
    assert paths(found) == [SETTINGS, FLAGS_ENV, INSTANCE, "/etc/crictl.yaml"]
    drop_in = "/etc/systemd/system/kubelet.service.d/a.conf"
    node.disk.put(drop_in, f"[Service]\nExecStart=\nExecStart=kubelet {ENDPOINT}=/run/cri-dockerd.sock\n".encode())
    facts = with_unit(replace(facts, words=words), KUBELET_UNIT, files=[drop_in])
    [step] = [step for step in plan(facts).steps if isinstance(step, WriteFile) and step.path == drop_in]
    assert step.content.endswith(b"kubelet --container-runtime-endpoint=unix:///run/dockershim.sock\n")
    assert [str(one) for one in (*step.then, *step.undone)] == ["systemctl daemon-reload"] * 2


def test_with_the_old_socket_nothing_of_the_kubelet_changes() -> None:
    found = plan(Node.made().facts(), keep_socket=True)
    assert paths(found) == [SETTINGS]
    assert found.new == found.old
    assert found.notes == ("the group docker had access to /run/cri-dockerd.sock, which is root's from now on",)
    # A server that is configured with it keeps it as well.
    there = replace(config.Config(), container_runtime_endpoint="unix:///var/run/cri-dockerd.sock")
    assert plan(replace(Node.made().facts(), config=there)) == found


def test_a_kubelet_that_does_not_run_is_left_alone() -> None:
    node = Node.made()
    node.units[KUBELET_UNIT][1] = "inactive"
    found = plan(node.facts())
    assert [line for line in commands(found) if "kubelet" in line] == []
    assert CONFIG in paths(found)
    assert found.notes == ("kubelet.service does not run, and is not started",)


REFUSED: Mapping[str, tuple[Callable[[], Facts], str]] = {
    "no cri-dockerd": (
        lambda: with_unit(Node.made().facts(), OLD, state="failed"),
        "neither cri-docker.service nor cri-dockerd.service is active",
    ),
    "two of them": (
        lambda: with_unit(Node.made().facts(), SERVICE, state="active"),
        "cri-docker.service and cri-dockerd.service are both active",
    ),
    "no command line": (lambda: with_words(program="").facts(), "is , not cri-dockerd"),
    "no process": (lambda: replace(Node.made().facts(), words={}), "command line of its process 1 cannot be read"),
    "another program": (lambda: with_words(program="/bin/sh").facts(), "its process 1 is /bin/sh, not cri-dockerd"),
    "ours": (
        lambda: with_words("/usr/bin/cri-dockerd", program="/usr/lib/dockershim/bin/python3").facts(),
        "runs dockershim under the name cri-dockerd; it has moved already",
    ),
    "another release": (lambda: with_words("--criu=x").facts(), "unknown flag: --criu, which cri-dockerd 0.4.4"),
    "a flag that prints": (lambda: with_words("--version").facts(), "print something and do not serve"),
    "kubenet": (lambda: with_words("--network-plugin=kubenet").facts(), "drain this node instead"),
    "a value": (lambda: with_words("--cni-bin-dir=a").facts(), "cni_bin_dir = 'a': must be an absolute path"),
    "tcp": (
        lambda: with_words("--container-runtime-endpoint=tcp://1.2.3.4:5").facts(),
        "--container-runtime-endpoint=tcp://1.2.3.4:5 is not a unix socket",
    ),
    "two sockets": (
        lambda: with_unit(Node.made().facts(), OLD_SOCKET, listens=["/a", "/b"]),
        "must listen on one path for it, and not on: /a, /b",
    ),
    "no socket": (lambda: without_unit(Node.made().facts(), OLD_SOCKET), "and not on: none"),
    "needed": (
        lambda: with_unit(Node.made().facts(), OLD, needed_by=frozenset({"kubelet.service", "multi-user.target"})),
        "kubelet.service: starts cri-docker.service with itself",
    ),
    "not installed": (lambda: without_unit(Node.made().facts(), UNIT), "dockershim.service is not installed"),
    "masked": (lambda: with_unit(Node.made().facts(), UNIT, enabled="masked"), "systemctl unmask dockershim.service"),
    "both": (
        lambda: with_unit(Node.made().facts(), UNIT, state="active"),
        "dockershim.service: active next to cri-docker.service; run: systemctl disable --now",
    ),
    "socket of ours": (
        lambda: with_unit(Node.made(command=("dockershim", ENDPOINT, "fd://")).facts(), SOCKET_UNIT, listens=[]),
        "dockershim.socket: must listen on one path, and not on: none",
    ),
    "another runtime": (
        lambda: with_kubelet(f"{ENDPOINT}=unix:///run/c"),
        "uses unix:///run/c, which cri-dockerd does not serve",
    ),
    "a flag from nowhere": (
        lambda: with_kubelet(f"{ENDPOINT}=/run/cri-dockerd.sock"),
        "none of its files sets /run/cri-dockerd.sock as its endpoint, so it cannot be changed; use --keep-socket",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_with_the_reason_and_a_remedy(case: str) -> None:
    facts, said = REFUSED[case]
    with pytest.raises(Refused, match=re.escape(said)):
        plan(facts())


def test_refused_files() -> None:
    node = Node.made()
    node.disk.put(SETTINGS, b"a = \n")
    with pytest.raises(Refused, match=f"{SETTINGS}: is not valid TOML"):
        plan(node.facts())
    node = Node.made()
    packaged = "/usr/lib/systemd/system/kubelet.service"
    node.disk.put(packaged, b"ExecStart=kubelet --container-runtime-endpoint=/run/cri-dockerd.sock\n")
    with pytest.raises(Refused, match=f"{packaged}: sets the kubelet's endpoint, and is a package's file"):
        plan(with_unit(node.facts(), KUBELET_UNIT, files=[packaged]))


def test_a_flag_of_our_unit_wins_over_the_old_socket() -> None:
    node = Node.made(command=("dockershim", "serve", "--container-runtime-endpoint=unix:///run/a.sock"))
    assert plan(node.facts()).new == "unix:///run/a.sock"
    with pytest.raises(Refused, match=r"has the flag --container-runtime-endpoint=unix:///run/a\.sock"):
        plan(node.facts(), keep_socket=True)


def test_only_one_value_of_each_file_changes() -> None:
    for step in plan(Node.made().facts()).steps:
        if isinstance(step, WriteFile) and step.path in FILES:
            assert step.replaced is not None
            old, new = step.replaced
            assert step.content.decode() == FILES[step.path].replace(old, new)
