"""What the plan has for each complaint, and what it leaves to the operator."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dockershim.changes.steps import Refused, Run, SetValue, Step, WriteFile
from dockershim.doctor import state
from dockershim.doctor.daemon import Daemon
from dockershim.doctor.findings import Finding, fail, warn
from dockershim.doctor.server import UNIT
from dockershim.doctor.units import KUBELET_UNIT, SOCKET_UNIT
from dockershim.server import cli, config
from dockershim.setup import plan as plan_module
from dockershim.setup.plan import BRIDGE, FEATURES, Plan, Wishes, make_plan
from tests.unit.setup.node import DAEMON_JSON, DOCKER, Node
from tests.unit.translate.kubelet import ENGINE_28


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def plan(node: Node, *features: str, network: str = BRIDGE) -> Plan:
    return make_plan(node.facts(), Wishes(network, frozenset(features)))


def paths(steps: tuple[Step, ...]) -> list[str]:
    return [step.path for step in steps if isinstance(step, WriteFile)]


def commands(steps: tuple[Step, ...]) -> list[str]:
    found = [str(step.command) for step in steps if isinstance(step, Run)]
    return found + [str(one) for step in steps if isinstance(step, WriteFile) for one in (*step.then, *step.undone)]


def left(found: Plan) -> dict[str, str]:
    return {one.title: f"{one.message}; {one.fix}" for one in found.left}


def test_all_of_it(node: Node) -> None:
    found = plan(node, *FEATURES)
    assert paths(found.steps) == [
        "/etc/modules-load.d/dockershim.conf",
        "/etc/sysctl.d/99-zz-dockershim.conf",
        "/usr/local/bin/dockershim-runc",
        DAEMON_JSON,
        "/etc/cni/net.d/10-dockershim-bridge.conflist",
        "/etc/dockershim/config.toml.d/50-setup.toml",
        "/etc/crictl.yaml",
        "/etc/systemd/system/kubelet.service.d/99-dockershim.conf",
    ]
    assert [step.path for step in found.steps if isinstance(step, SetValue)] == ["/proc/sys/net/ipv4/ip_forward"]
    assert left(found) == {}
    conflist = next(step for step in found.steps if isinstance(step, WriteFile) and step.path.endswith(".conflist"))
    assert b"10.89.0.0/16" in conflist.content, "a route leads to the first range"


def test_what_doctor_does_not_complain_about_is_not_changed(node: Node) -> None:
    node.setup(apply=True)
    facts = node.facts()
    well = replace(facts, findings=[one for one in facts.findings if one.title != "crictl"])
    assert make_plan(well, Wishes()).steps == ()


@pytest.mark.parametrize(
    "finding",
    [
        pytest.param(fail("swap", "on", "swapoff -a"), id="swap"),
        pytest.param(warn("security modules", "AppArmor is off", "apt-get install apparmor"), id="AppArmor"),
        pytest.param(warn("mount propagation", "odd", "something else"), id="a fix of another form"),
    ],
)
def test_what_setup_cannot_do_it_says_as_doctor_says_it(node: Node, finding: Finding) -> None:
    node.shared = True
    node.findings = [finding]
    found = plan(node)
    assert finding in found.left
    assert "mount" not in " ".join(commands(found.steps))


@pytest.mark.parametrize(
    ("running", "configured", "restarts"),
    [
        pytest.param(0, b"{}", True, id="no container runs"),
        pytest.param(3, b"{}", True, id="live-restore is turned on before"),
        pytest.param(3, b'{"live-restore": true}', True, id="live-restore is on"),
    ],
)
def test_a_restart_that_stops_no_container(node: Node, running: int, configured: bytes, restarts: bool) -> None:
    node.running = running
    node.put(DAEMON_JSON, configured)
    node.engine = {"live-restore": True} if b"true" in configured else {}
    [step] = [one for one in plan(node).steps if isinstance(one, WriteFile) and one.path == DAEMON_JSON]
    assert ["restart" in str(one) for one in step.then] == [False, restarts]


def test_an_engine_in_a_swarm_is_not_restarted_under_containers(node: Node) -> None:
    node.swarm = True
    found = plan(node)
    [step] = [one for one in found.steps if isinstance(one, WriteFile) and one.path == DAEMON_JSON]
    assert b"live-restore" not in step.content
    assert [str(one) for one in step.then] == [f"systemctl reload {DOCKER}"]
    assert "would stop 1 containers" in left(found)["container logs"]
    assert "in a swarm" in left(found)["live-restore"]


@pytest.mark.parametrize(
    ("flags", "absent"),
    [
        pytest.param({"live-restore"}, b"live-restore", id="live-restore"),
        pytest.param({"log-opt"}, b"log-opts", id="options of logs"),
        pytest.param({"log-driver"}, b"log-opts", id="driver of logs"),
        pytest.param({"add-runtime"}, b"runtimes", id="runtimes"),
    ],
)
def test_what_dockerd_has_as_a_flag_is_not_in_the_file_too(node: Node, flags: set[str], absent: bytes) -> None:
    """It does not start with both."""
    node.daemon = Daemon("/usr/sbin/dockerd", frozenset(flags), unit=DOCKER)
    [step] = [one for one in plan(node).steps if isinstance(one, WriteFile) and one.path == DAEMON_JSON]
    assert absent not in step.content


def test_an_engine_without_systemd_is_reloaded_by_a_signal_and_not_restarted(node: Node) -> None:
    node.daemon = Daemon("/usr/sbin/dockerd", config_file="/srv/daemon.json")
    found = plan(node)
    [step] = [one for one in found.steps if isinstance(one, WriteFile) and one.path == "/srv/daemon.json"]
    assert [one.words[0] for one in (*step.then, *step.undone)] == ["sh", "sh"]
    assert "restart Docker" in left(found)["container logs"]


@pytest.mark.parametrize("features", [None, ENGINE_28], ids=["no engine", "an engine elsewhere"])
def test_an_engine_that_is_not_here_is_not_configured(node: Node, features: object) -> None:
    node.features, node.daemon = features, None
    found = plan(node)
    assert DAEMON_JSON not in paths(found.steps)
    assert "engine" in left(found) or "live-restore" in left(found)


def test_a_runtime_is_no_way_around_an_authorization_plugin(node: Node) -> None:
    node.authorization = True
    assert "/usr/local/bin/dockershim-runc" not in paths(plan(node).steps)
    assert "/usr/local/bin/dockershim-runc" in paths(plan(node, "user-namespaces").steps)


@pytest.mark.parametrize(
    ("feature", "api", "message"),
    [
        pytest.param("user-namespaces", (1, 43), "Docker 25 or newer is required", id="user namespaces"),
        pytest.param("early-network", (1, 47), "Docker 28 or newer is required", id="early network"),
    ],
)
def test_a_feature_that_the_engine_cannot_have(node: Node, feature: str, api: tuple[int, int], message: str) -> None:
    node.features = replace(ENGINE_28, api=api)
    with pytest.raises(Refused, match=f"--with={feature}: {message}"):
        plan(node, feature)
    assert not any(feature in offer for offer in plan(node).offers)


def test_features_are_offered_by_name_until_they_are_on(node: Node) -> None:
    assert [feature for feature in FEATURES if f"--with={feature}" in " ".join(plan(node).offers)] == list(FEATURES)
    node.setup(apply=True, wishes=Wishes(features=frozenset(FEATURES)))
    assert plan(node).offers == ()
    assert plan(node, *FEATURES, network="").steps == ()


def test_a_network_without_its_plugins_is_refused(node: Node) -> None:
    node.disk.at("/usr/lib/cni/firewall").unlink()
    with pytest.raises(Refused, match=r"plugins firewall are not in /opt/cni/bin, /usr/lib/cni; install them"):
        plan(node)
    assert "--network=bridge" in " ".join(plan(node, network="").offers)


def test_a_network_that_the_server_would_not_use_is_refused(node: Node) -> None:
    node.config = replace(node.config, network_plugin="docker")
    with pytest.raises(Refused, match="network_plugin = docker"):
        plan(node)


def test_a_network_that_is_there_stays(node: Node) -> None:
    node.put("/etc/cni/net.d/05-calico.conflist", b'{"cniVersion":"1.0.0","name":"a","plugins":[{"type":"bridge"}]}')
    found = plan(node)
    assert [path for path in paths(found.steps) if path.endswith(".conflist")] == []
    assert "has a network: /etc/cni/net.d/05-calico.conflist" in " ".join(found.offers)


def test_a_node_with_cri_dockerd_is_not_taken_over(node: Node) -> None:
    node.findings = list(state.check_cri_dockerd(["cri-docker.service"], [], 0, adopts=False))
    found = plan(node)
    assert not any("dockershim.service" in line and "try-restart" not in line for line in commands(found.steps))
    assert "/etc/crictl.yaml" not in paths(found.steps)
    assert "cri-dockerd" in left(found)


@pytest.mark.parametrize(
    ("command", "unit", "pointed"),
    [
        pytest.param("", "inactive", True, id="stopped"),
        pytest.param("", "activating", True, id="it fails, as it has no runtime"),
        pytest.param("", "active", False, id="it runs with a default"),
        pytest.param(" --container-runtime-endpoint=unix:///a", "active", False, id="it runs with another runtime"),
        pytest.param(" --container-runtime-endpoint=unix:///a", "activating", False, id="it fails with another"),
        pytest.param(" --container-runtime-endpoint=unix:///a", "inactive", True, id="stopped, with another"),
    ],
)
def test_a_kubelet_that_runs_keeps_its_runtime(node: Node, command: str, unit: str, pointed: bool) -> None:
    node.put("/etc/systemd/system/kubelet.service", f"[Service]\nExecStart=/k{command}\n".encode())
    node.units[KUBELET_UNIT] = ["enabled", unit]
    found = plan(node)
    drop_ins = [step for step in found.steps if isinstance(step, WriteFile) and "kubelet" in step.path]
    assert bool(drop_ins) == pointed
    assert ("kubelet's endpoint" in left(found)) != pointed
    for step in drop_ins:
        assert step.content.count(b"--container-runtime-endpoint=unix:///run/dockershim.sock\n") == 1


@pytest.mark.parametrize(
    ("service", "socket", "expected"),
    [
        pytest.param(
            ["disabled", "inactive"],
            ["disabled", "inactive"],
            [f"systemctl enable {UNIT} {SOCKET_UNIT}", f"systemctl start {UNIT} {SOCKET_UNIT}"],
            id="new",
        ),
        pytest.param(["disabled", "active"], ["disabled", "inactive"], [f"systemctl enable {UNIT}"], id="it runs"),
        pytest.param(["enabled", "failed"], ["enabled", "active"], [f"systemctl start {UNIT}"], id="it has failed"),
        pytest.param(["masked", "inactive"], ["masked", "inactive"], [], id="masked"),
    ],
)
def test_units(node: Node, service: list[str], socket: list[str], expected: list[str]) -> None:
    node.units[UNIT], node.units[SOCKET_UNIT] = service, socket
    found = commands(plan(node).steps)
    verbs = ("systemctl enable", "systemctl start")
    assert [line for line in found if line.startswith(verbs)] == expected


def test_with_the_names_of_cri_dockerd_its_units_are_enabled_and_restarted(tmp_path: Path) -> None:
    node = Node(tmp_path, unit="cri-docker.service", socket="cri-docker.socket")
    found = commands(plan(node).steps)
    assert "systemctl enable cri-docker.service cri-docker.socket" in found
    assert "systemctl start cri-docker.service cri-docker.socket" in found
    assert "systemctl try-restart cri-docker.service" in found
    assert not any(UNIT in line for line in found)


def test_a_server_without_units_is_said(node: Node) -> None:
    node.units.clear()
    assert "is not installed" in left(plan(node))["server"]


def test_a_symbolic_link_is_left_and_the_rest_goes_on(node: Node) -> None:
    node.disk.at("/etc/crictl.yaml").unlink()
    node.disk.at("/etc/crictl.yaml").symlink_to("/etc/passwd")
    found = plan(node)
    assert "/etc/crictl.yaml: is a symbolic link" in left(found)["setup"]
    assert "/etc/crictl.yaml" not in paths(found.steps)
    assert DAEMON_JSON in paths(found.steps)


def test_the_command_line_offers_what_the_plan_knows() -> None:
    choices = {action.dest: action.choices for action in cli.make_parser()._actions}
    assert choices["network"] == (BRIDGE,)
    assert choices["features"] == FEATURES
    assert plan_module.RUNTIME == "dockershim-runc"
    assert config.Config().container_runtime_endpoint == "unix:///run/dockershim.sock"
