"""What pods and services of two nodes reach, by kube-proxy's iptables and by its nftables."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

from tests.kubernetes.workloads import PORT, deploy
from tests.two_nodes.cluster import CONTROL, PATIENCE, WORKER, TwoNodes
from tests.vm.guest import Guest

NAME = "web"
HOST_PORT = 8088
TRIES = 12
MODES = ("iptables", "nftables")
MUCH = 300_000  # bytes, which no packet holds
#: One pod on each node, that of the control plane among them.
SPREAD = {
    "tolerations": [{"key": "node-role.kubernetes.io/control-plane", "operator": "Exists"}],
    "affinity": {
        "podAntiAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": [
                {"labelSelector": {"matchLabels": {"app": NAME}}, "topologyKey": "kubernetes.io/hostname"}
            ]
        }
    },
}


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod that tells its name by HTTP."""

    cluster: TwoNodes
    name: str
    node: str
    address: str

    @property
    def url(self) -> str:
        return f"http://{self.address}:{PORT}"

    def run(self, script: str) -> str:
        """What a shell in it prints."""
        return self.cluster.kubectl("exec", self.name, "--", "sh", "-c", script)

    def hears(self, url: str, tries: int = 1) -> set[str]:
        """The names that it is told at an URL."""
        return set(self.run(f"for i in $(seq {tries}); do curl -s -m 30 {url}/hostname && echo; done").split())


@dataclass(frozen=True, slots=True)
class Web:
    """A pod on each node, and the Service before them."""

    cluster: TwoNodes
    here: Pod
    there: Pod
    service: dict[str, Any]

    @property
    def pods(self) -> tuple[Pod, Pod]:
        return self.here, self.there

    def wait_for_both(self, hear: Callable[[], set[str]], where: str) -> None:
        """Wait until both answer: on a busy machine one may not have been ready a moment ago."""
        both = {self.here.name, self.there.name}
        self.cluster.wait(lambda: hear() == both, PATIENCE, f"an answer of both pods on {where}")


def proxy_mode(guest: Guest) -> str:
    """What kube-proxy says of itself; empty before it serves."""
    return guest.sh(
        "python3 -c 'from urllib.request import *; print(urlopen(\"http://127.0.0.1:10249/proxyMode\").read().decode())'",
        check=False,
    ).strip()


def set_proxy_mode(made: TwoNodes, mode: str) -> None:
    """Change its ConfigMap, and start it again on both nodes."""
    config = json.loads(made.kubectl("-n", "kube-system", "get", "configmap", "kube-proxy", "-o", "json"))
    lines = config["data"]["config.conf"].splitlines()
    config["data"]["config.conf"] = "\n".join(f"mode: {mode}" if line.startswith("mode:") else line for line in lines)
    made.kubectl("replace", "-f", "-", stdin=json.dumps(config))
    made.kubectl("-n", "kube-system", "rollout", "restart", "daemonset/kube-proxy")
    made.rolled_out("daemonset/kube-proxy", PATIENCE, "kube-system")


@pytest.fixture(scope="module", params=MODES)
def web(made: TwoNodes, request: pytest.FixtureRequest) -> Iterator[Web]:
    """The pods and the Service, by kube-proxy in one of its modes."""
    if proxy_mode(made.worker) != request.param:
        set_proxy_mode(made, request.param)
    modes = {request.param}
    made.wait(lambda: set(map(proxy_mode, made.nodes)) == modes, PATIENCE, f"kube-proxy with {request.param}")
    service = {"type": "NodePort"}
    deploy(made, NAME, 2, spec=SPREAD, service=service, host_port=HOST_PORT, seconds=PATIENCE)
    found = {
        pod["spec"]["nodeName"]: Pod(made, pod["metadata"]["name"], pod["spec"]["nodeName"], pod["status"]["podIP"])
        for pod in made.pods("-l", f"app={NAME}")
    }
    spec = json.loads(made.kubectl("get", "service", NAME, "-o", "json"))["spec"]
    yield Web(made, found[CONTROL], found[WORKER], spec)
    made.kubectl("delete", "deployment,service", NAME, "--ignore-not-found", "--cascade=foreground", "--wait")


def test_both_nodes_are_ready_and_the_control_plane_runs_on_our_server(made: TwoNodes) -> None:
    nodes = {
        node["metadata"]["name"]: node["status"]
        for node in json.loads(made.kubectl("get", "nodes", "-o", "json"))["items"]
    }
    assert made.ready() == {CONTROL, WORKER}
    assert {node["nodeInfo"]["containerRuntimeVersion"].partition(":")[0] for node in nodes.values()} == {"docker"}
    parts = {"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"}
    pods = {pod["metadata"]["name"] for pod in made.pods("-n", "kube-system")}
    assert {f"{part}-{CONTROL}" for part in parts} <= pods
    for guest in made.nodes:
        config = guest.read("/var/lib/kubelet/config.yaml")
        assert "cgroupDriver: systemd" in config
        assert "failCgroupV1" not in config
        assert "failSwapOn" not in config
        assert guest.run("stat", "--file-system", "--format=%T", "/sys/fs/cgroup").strip() == "cgroup2fs"


def test_pods_of_two_nodes_reach_each_other_by_address(web: Web) -> None:
    assert {pod.node for pod in web.pods} == {CONTROL, WORKER}
    for asking, asked in (web.pods, reversed(web.pods)):
        assert asking.hears(asked.url) == {asked.name}
        much = f"curl -s -m 300 -G --data-urlencode 'cmd=head -c {MUCH} /dev/zero | tr \"\\0\" x' {asked.url}/shell"
        assert int(asking.run(f"{much} | wc -c")) > MUCH


def test_the_service_answers_by_its_name_on_both_nodes_for_the_pods_of_both(web: Web) -> None:
    for pod in web.pods:
        web.wait_for_both(partial(pod.hears, f"http://{NAME}.default.svc.cluster.local", TRIES), pod.node)


def test_the_service_answers_at_a_port_of_each_node(web: Web) -> None:
    [port] = web.service["ports"]
    for guest in web.cluster.nodes:
        url = f"http://{guest.port.address}:{port['nodePort']}/hostname"
        web.wait_for_both(partial(web.cluster.hears, url, TRIES), guest.name)


def test_a_host_port_answers_for_the_pod_of_its_node(web: Web) -> None:
    for guest, pod in zip(web.cluster.nodes, web.pods, strict=True):
        assert web.cluster.get(f"http://{guest.port.address}:{HOST_PORT}/hostname") == pod.name
        # From a pod of the other node, too.
        [other] = (one for one in web.pods if one is not pod)
        assert other.hears(f"http://{guest.port.address}:{HOST_PORT}") == {pod.name}
