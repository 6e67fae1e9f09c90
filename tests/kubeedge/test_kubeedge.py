"""A pod that comes from an API server by cloudcore and edgecore, and goes on when these are unavailable.

The tests run in this order: each finds what the one before it has left.
"""

from __future__ import annotations

import json
import subprocess
import time
import urllib.request
from typing import Any, NamedTuple
from urllib.parse import urlencode

import pytest
from docker import DockerClient

from tests.cluster.cluster import Cluster
from tests.engine.pods import BUSYBOX
from tests.kubeedge.kubeedge import EDGE_API, NODE, KubeEdge
from tests.kubernetes.client import ClusterError
from tests.kubernetes.leftovers import left, snapshot
from tests.node.server import Server
from tests.node.state import Snapshot
from tests.streaming_client import spdy_command

pytestmark = pytest.mark.timeout(700)

NAME, PAGE = "web", "a page\n"
#: edgecore 1.23 empties the volumes of running pods when it starts, before it has read which pods it has. So the main
#: container copies its page out of one.
MAIN = "mkdir /www; cp /given/index.html /www; echo it has started; httpd -p 80 -h /www; while true; do sleep 1; done"
#: An answer from the cloud that edgecore loses it asks for again after a minute.
SOON = 150.0
#: A kubelet collects the sandboxes of ended pods once a minute.
COLLECTED = 150.0


def manifests() -> list[dict[str, Any]]:
    """A pod with what comes to the edge in several messages: itself, and a ConfigMap."""
    given = [{"name": "given", "mountPath": "/given"}]
    main = {
        "name": "main",
        "image": BUSYBOX,
        "command": ["sh", "-c", MAIN],
        "volumeMounts": given,
        "resources": {"limits": {"memory": "64Mi", "cpu": "500m"}},
        "readinessProbe": {"httpGet": {"port": 80, "path": "/index.html"}, "periodSeconds": 1},
        "livenessProbe": {"exec": {"command": ["cat", "/www/index.html"]}, "periodSeconds": 5, "timeoutSeconds": 10},
    }
    init = {"name": "init", "image": BUSYBOX, "command": ["test", "-s", "/given/index.html"], "volumeMounts": given}
    spec = {
        "nodeName": NODE,
        "terminationGracePeriodSeconds": 1,
        "initContainers": [init],
        "containers": [main],
        "volumes": [{"name": "given", "configMap": {"name": NAME}}],
    }
    return [
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": NAME}, "data": {"index.html": PAGE}},
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": NAME}, "spec": spec},
    ]


class Running(NamedTuple):
    """The main container that runs."""

    id: str
    attempt: int
    sandbox: str


@pytest.fixture(scope="module")
def before(kubeedge: KubeEdge) -> Snapshot:
    """The node before the pod."""
    return snapshot()


def status(cluster: Cluster) -> dict[str, Any]:
    """The pod's, as the API server has it."""
    found: dict[str, Any] = json.loads(cluster.kubectl("get", "pod", NAME, "-o", "json"))["status"]
    return found


def main(cluster: Cluster) -> dict[str, Any]:
    """The main container's status."""
    return next((one for one in status(cluster).get("containerStatuses", []) if one["name"] == "main"), {})


def crictl(server: Server, *arguments: str) -> str:
    command = ["crictl", f"--runtime-endpoint={server.target}", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=30).stdout


def running(server: Server) -> Running | None:
    """What runs, as the server has it."""
    found = json.loads(crictl(server, "ps", "-o", "json", "--name", "^main$"))["containers"]
    [one] = found or [None]
    return one and Running(one["id"], one["metadata"]["attempt"], one["podSandboxId"])


def serves(server: Server) -> bool:
    """Whether the page is served at the address of the pod that runs."""
    now = running(server)
    if now is None:
        return False
    address = json.loads(crictl(server, "inspectp", now.sandbox))["status"]["network"]["ip"]
    try:
        with urllib.request.urlopen(f"http://{address}/index.html", timeout=10) as answer:
            return bool(answer.read().decode() == PAGE)
    except OSError:
        return False


def test_the_node_says_what_runs_on_it(cluster: Cluster, kubeedge: KubeEdge) -> None:
    info = json.loads(cluster.kubectl("get", "node", NODE, "-o", "json"))["status"]["nodeInfo"]
    assert info["containerRuntimeVersion"].startswith("docker://")
    assert "-kubeedge-v1." in info["kubeletVersion"]


def test_start(cluster: Cluster, before: Snapshot) -> None:
    """Init container, then main, which is ready at the address that is reported."""
    cluster.kubectl("create", "-f", "-", stdin="\n".join(f"---\n{json.dumps(one)}" for one in manifests()))
    cluster.wait(lambda: bool(main(cluster).get("ready")), SOON, "the pod")
    found = status(cluster)
    assert (found["phase"], found["podIP"][:3], main(cluster)["restartCount"]) == ("Running", "10.", 0)
    with urllib.request.urlopen(f"http://{found['podIP']}/index.html", timeout=10) as answer:
        assert answer.read().decode() == PAGE


def test_logs(cluster: Cluster) -> None:
    assert cluster.kubectl("logs", NAME, "-c", "main") == "it has started\n"


def test_statistics(cluster: Cluster) -> None:
    def used() -> int:
        summary = json.loads(cluster.kubectl("get", "--raw", f"/api/v1/nodes/{NODE}/proxy/stats/summary"))
        pod: dict[str, Any] = next(
            (one for one in summary["pods"] if one["podRef"]["name"] == NAME), {"containers": []}
        )
        containers = {one["name"]: one for one in pod["containers"]}
        return int(containers.get("main", {}).get("memory", {}).get("workingSetBytes", 0))

    cluster.wait(lambda: used() > 0, SOON, "its memory")


async def test_exec_on_the_edge(cluster: Cluster) -> None:
    """By edgecore's API on the node, to which the tunnel from the cloud leads."""

    def command(*words: str, stdin: bool = False) -> str:
        query = {"command": words, "output": 1, "error": 1, **({"input": 1} if stdin else {})}
        return f"{EDGE_API}/exec/default/{NAME}/main?{urlencode(query, doseq=True)}"

    async with spdy_command(command("cat", "/www/index.html")) as one:
        assert await one.all("stdout") == PAGE.encode()
        assert await one.exit_code() == 0
    async with spdy_command(command("wc", "-c", stdin=True), stdin=True) as one:
        await one.channels["stdin"].write(b"x" * 1_000_000)
        await one.channels["stdin"].close_write()
        assert (await one.all("stdout")).strip() == b"1000000"
    async with spdy_command(command("sh", "-c", "exit 7")) as one:
        assert await one.exit_code() == 7


def test_exec(cluster: Cluster, kubeedge: KubeEdge) -> None:
    """By kubectl. The end of an exec may end edgecore (KubeEdge.revive)."""

    def page() -> str:
        kubeedge.revive()
        return cluster.kubectl("exec", NAME, "-c", "main", "--", "cat", "/www/index.html")

    cluster.wait(lambda: page() == PAGE, SOON, "an exec")


def test_server_and_edgecore_are_started_again(cluster: Cluster, kubeedge: KubeEdge, server: Server) -> None:
    """The pod goes on, in the same containers."""
    was = running(server)
    server.restart()
    kubeedge.stop_edge()
    kubeedge.start_edge()
    kubeedge.wait_ready()
    cluster.wait(lambda: bool(main(cluster).get("ready")), SOON, "the pod")
    cluster.wait(lambda: "it has started" in cluster.kubectl("logs", NAME, "-c", "main"), SOON, "its log")
    assert (running(server), main(cluster)["restartCount"]) == (was, 0)
    assert serves(server)


def test_edgecore_is_started_again_while_the_cloud_is_unavailable(
    cluster: Cluster, kubeedge: KubeEdge, server: Server, engine: DockerClient
) -> None:
    """The pod goes on. What fails is started again, as edgecore keeps what the cloud has sent."""
    was = running(server)
    assert was is not None
    kubeedge.take_cloud_away()
    with pytest.raises(ClusterError):
        cluster.kubectl("get", "nodes")
    kubeedge.stop_edge()
    kubeedge.start_edge()
    cluster.wait(lambda: kubeedge.knows(NAME), SOON, "the pod on the edge")
    # Two of its syncs, in which it would replace what it takes for another pod's.
    time.sleep(11)
    assert running(server) == was
    assert serves(server)

    def again() -> bool:
        now = running(server)
        return now is not None and (now.attempt, now.sandbox) == (was.attempt + 1, was.sandbox)

    engine.containers.get(was.id).kill()
    cluster.wait(again, SOON, "the restart of the container")
    cluster.wait(lambda: serves(server), SOON, "its page")

    def elsewhere() -> bool:
        now = running(server)
        return now is not None and now.sandbox != was.sandbox

    engine.containers.get(was.sandbox).kill()
    cluster.wait(elsewhere, SOON, "the next sandbox")
    cluster.wait(lambda: serves(server), SOON, "its page")


def test_the_cloud_comes_back(cluster: Cluster, kubeedge: KubeEdge, server: Server) -> None:
    """It learns what became of the pod."""
    kubeedge.bring_cloud_back()
    now = running(server)
    assert now is not None
    cluster.wait(lambda: main(cluster).get("containerID") == f"docker://{now.id}", SOON, "the pod's status")
    address = json.loads(crictl(server, "inspectp", now.sandbox))["status"]["network"]["ip"]
    assert (status(cluster)["podIP"], main(cluster)["restartCount"]) == (address, now.attempt)
    cluster.wait(lambda: "it has started" in cluster.kubectl("logs", NAME, "-c", "main"), SOON, "its log")


def test_stop(cluster: Cluster, kubeedge: KubeEdge, server: Server, before: Snapshot) -> None:
    """Nothing of the pod stays."""
    cluster.kubectl("delete", "pod", NAME, "--wait", "--timeout=60s")
    cluster.wait(lambda: not crictl(server, "pods", "-q"), COLLECTED, "the kubelet's collection of what has ended")
    assert left(before) == []
