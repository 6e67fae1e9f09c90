"""What users do with a node: pods by a kubelet, and kubectl's ways into them."""

from __future__ import annotations

import gzip
import json
import re
import socket
import subprocess
import tarfile
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.cluster import LOGS, NODE, Cluster
from tests.engine.pods import BUSYBOX
from tests.kubernetes.client import ClusterError
from tests.kubernetes.interface import ADDRESS
from tests.node.server import Server

pytestmark = pytest.mark.timeout(240)

#: Seconds, in which a kubelet syncs each pod six times and more.
WATCHED = 45
PAGE, HOST_PORT = "a page\n", 18080
WRITE_LINES = "i=0; while true; do echo line $i of many that are written; i=$((i+1)); usleep 2000; done"
WEBSOCKET = {"KUBECTL_REMOTE_COMMAND_WEBSOCKETS": "true", "KUBECTL_PORT_FORWARD_WEBSOCKETS": "true"}
SPDY = dict.fromkeys(WEBSOCKET, "false")
each_transport = pytest.mark.parametrize(
    "transport", [pytest.param(WEBSOCKET, id="WebSocket"), pytest.param(SPDY, id="SPDY")]
)


def container(name: str, command: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "image": BUSYBOX, "command": ["sh", "-c", command], **more}


def pod(name: str, *containers: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    spec = {"nodeName": NODE, "terminationGracePeriodSeconds": 1, "containers": containers, **more}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def status(cluster: Cluster, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(cluster.kubectl("get", "pod", name, "-o", "json"))["status"]
    return found


def statuses(cluster: Cluster, name: str) -> dict[str, dict[str, Any]]:
    return {one["name"]: one for one in status(cluster, name).get("containerStatuses", [])}


@contextmanager
def running(cluster: Cluster, manifest: Mapping[str, Any]) -> Iterator[str]:
    """A pod whose container ``main`` is ready, gone at the end."""
    name = manifest["metadata"]["name"]
    cluster.kubectl("create", "-f", "-", stdin=json.dumps(manifest))
    try:
        cluster.wait(lambda: statuses(cluster, name).get("main", {}).get("ready", False), 60, f"pod {name}")
        yield name
    finally:
        cluster.kubectl("delete", "pod", name, "--wait", "--timeout=60s", "--ignore-not-found")


@pytest.fixture(scope="module")
def web(cluster: Cluster) -> Iterator[str]:
    """A pod with what pods have: an init container, a volume, probes, limits, a host port, a terminal, a failure."""
    data = {"volumeMounts": [{"name": "data", "mountPath": "/data"}]}
    limits = {"resources": {"limits": {"memory": "64Mi", "cpu": "500m"}, "requests": {"memory": "32Mi", "cpu": "100m"}}}
    probes = {
        "livenessProbe": {"exec": {"command": ["cat", "/data/index.html"]}, "periodSeconds": 2},
        "readinessProbe": {"httpGet": {"port": 80, "path": "/index.html"}, "periodSeconds": 1},
    }
    ports = {"ports": [{"containerPort": 80, "hostPort": HOST_PORT}]}
    manifest = pod(
        "web",
        container("main", f"httpd -p 80 -h /data; {WRITE_LINES}", **data, **limits, **probes, **ports),
        container("terminal", "exec sh", stdin=True, tty=True),
        container("failing", "echo it fails; exit 3"),
        initContainers=[container("init", f"printf '{PAGE}' > /data/index.html", **data)],
        volumes=[{"name": "data", "emptyDir": {}}],
    )
    with running(cluster, manifest) as name:
        yield name


def test_the_pod_is_up_with_its_address_and_host_port(cluster: Cluster, web: str) -> None:
    found = status(cluster, web)
    assert found["phase"] == "Running"
    assert found["podIP"].startswith("10.")
    with urllib.request.urlopen(f"http://{ADDRESS}:{HOST_PORT}/index.html", timeout=5) as answer:
        assert answer.read().decode() == PAGE


def test_a_container_that_fails_is_started_again_and_its_exit_is_told(cluster: Cluster, web: str) -> None:
    cluster.wait(lambda: statuses(cluster, web)["failing"]["restartCount"] >= 1, 60, "a restart")
    ended = statuses(cluster, web)["failing"]
    last = ended["lastState"].get("terminated") or ended["state"]["terminated"]
    assert (last["exitCode"], last["reason"]) == (3, "Error")
    assert "it fails" in cluster.kubectl("logs", web, "-c", "failing")


def test_a_checkpoint_is_in_the_folder_of_the_kubelet(cluster: Cluster, web: str) -> None:
    path = f"/api/v1/nodes/{NODE}/proxy/checkpoint/default/{web}/main"
    [archive] = json.loads(cluster.kubectl("create", "--raw", path, "-f", "/dev/null"))["items"]
    assert Path(archive).name.startswith(f"checkpoint-{web}_default-main-")
    with tarfile.open(archive) as found:
        assert {"config.dump", "spec.dump", "checkpoint/inventory.img", "rootfs-diff.tar"} <= set(found.getnames())
    assert cluster.kubectl("exec", web, "-c", "main", "--", "cat", "/data/index.html") == PAGE
    # The liveness probe, a command, was refused once at most.
    assert statuses(cluster, web)["main"]["restartCount"] == 0


@each_transport
def test_exec(cluster: Cluster, web: str, transport: Mapping[str, str]) -> None:
    def run(*command: str, stdin: str = "") -> str:
        return cluster.kubectl("exec", "-i", web, "-c", "main", "--", *command, stdin=stdin, env=transport)

    assert run("cat", "/data/index.html") == PAGE
    assert run("wc", "-c", stdin="x" * 1_000_000).strip() == "1000000"
    with pytest.raises(ClusterError, match="exit code 7"):
        run("sh", "-c", "exit 7")


@each_transport
def test_a_terminal(cluster: Cluster, web: str, transport: Mapping[str, str]) -> None:
    """script(1) gives kubectl the terminal that it asks for."""
    runs = statuses(cluster, web)["terminal"]["restartCount"]
    for command in (("exec", "-it", web, "-c", "main", "--", "sh"), ("attach", "-it", web, "-c", "terminal")):
        settings = [f"{name}={value}" for name, value in transport.items()]
        line = " ".join(["env", *settings, *cluster.kubectl_command(*command)])
        done = subprocess.run(
            ["script", "--quiet", "--return", "--command", line, "/dev/null"],
            input="echo terminal-$((40+2))\nexit\n",
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert "terminal-42" in done.stdout, done

    def runs_again() -> bool:
        terminal = statuses(cluster, web)["terminal"]
        return terminal["restartCount"] > runs and "running" in terminal["state"]

    cluster.wait(runs_again, 60, "the terminal's next run")


@each_transport
def test_port_forward(cluster: Cluster, web: str, transport: Mapping[str, str]) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as free:
        port = free.getsockname()[1]
    settings = [f"{name}={value}" for name, value in transport.items()]
    command = ["env", *settings, *cluster.kubectl_command("port-forward", web, f"{port}:80")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as forward:
        try:
            assert forward.stdout is not None
            assert "Forwarding" in forward.stdout.readline()
            for _ in range(3):
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/index.html", timeout=10) as answer:
                    assert answer.read().decode() == PAGE
        finally:
            forward.terminate()


def test_files_are_copied(cluster: Cluster, web: str, tmp_path: Path) -> None:
    cluster.kubectl("cp", f"{web}:/data/index.html", str(tmp_path / "copied"), "-c", "main")
    assert (tmp_path / "copied").read_text() == PAGE


def test_an_ephemeral_container_sees_the_processes_of_its_target(cluster: Cluster, web: str) -> None:
    cluster.kubectl("debug", web, f"--image={BUSYBOX}", "--target=main", "-c", "debugger", "--", "ps")
    cluster.wait(lambda: "httpd" in cluster.kubectl("logs", web, "-c", "debugger", check=False), 30, "its output")


def test_a_resize_reaches_the_container(cluster: Cluster, web: str) -> None:
    change = {"spec": {"containers": [{"name": "main", "resources": {"limits": {"cpu": "700m"}}}]}}
    cluster.kubectl("patch", "pod", web, "--subresource=resize", "-p", json.dumps(change))
    cluster.wait(
        lambda: statuses(cluster, web)["main"].get("resources", {}).get("limits", {}).get("cpu") == "700m", 60, "it"
    )
    assert statuses(cluster, web)["main"]["restartCount"] == 0


def test_a_resize_of_the_whole_pod_reaches_its_cgroup_and_its_sandbox(cluster: Cluster, server: Server) -> None:
    """The kubelet writes the cgroup; the server shows what it was told, also after it was started again."""

    def resources(cpu: str) -> dict[str, Any]:
        return {"requests": {"cpu": "100m", "memory": "32Mi"}, "limits": {"cpu": cpu, "memory": "64Mi"}}

    def sandbox(name: str) -> dict[str, Any]:
        sandbox_id = crictl(server, "pods", "-q", "--name", name).strip()
        found: dict[str, Any] = json.loads(crictl(server, "inspectp", sandbox_id))["info"]
        return found

    def quotas(name: str) -> tuple[str, str, str]:
        """Of the pod by the API server, by the sandbox, and in the kernel."""
        found = sandbox(name)
        folder = Path("/sys/fs/cgroup/cpu", found["cgroupParent"].lstrip("/"))
        cpu = status(cluster, name).get("resources", {}).get("limits", {}).get("cpu", "")
        return cpu, found["resources"]["cpu_quota"], (folder / "cpu.cfs_quota_us").read_text().strip()

    with running(cluster, pod("resized", container("main", "sleep 600"), resources=resources("500m"))) as name:
        assert quotas(name)[1:] == ("50000", "50000")
        for cpu, quota in (("700m", "70000"), ("300m", "30000")):
            change = {"spec": {"resources": resources(cpu)}}
            cluster.kubectl("patch", "pod", name, "--subresource=resize", "-p", json.dumps(change))
            cluster.wait(lambda: quotas(name) == (cpu, quota, quota), 60, f"{cpu}: {quotas(name)}")  # noqa: B023
        assert statuses(cluster, name)["main"]["restartCount"] == 0
        server.stop()
        server.start()
        assert sandbox(name)["resources"]["cpu_quota"] == "30000"


def crictl(server: Server, *arguments: str) -> str:
    command = ["crictl", f"--runtime-endpoint={server.target}", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=30).stdout


def test_the_kubelet_rotates_the_log_and_no_line_is_lost(cluster: Cluster, web: str) -> None:
    folder = next(LOGS.glob(f"*_{web}_*")) / "main"
    cluster.wait(lambda: len(list(folder.iterdir())) >= 4, 90, "three rotations")
    numbers = sorted(
        int(number) for path in folder.iterdir() for number in re.findall(r" F line (\d+) of", _text_of(path))
    )
    assert numbers == list(range(numbers[0], numbers[-1] + 1))
    assert len(cluster.kubectl("logs", web, "-c", "main", "--tail=5").splitlines()) == 5


def _text_of(path: Path) -> str:
    content = path.read_bytes()
    return (gzip.decompress(content) if path.suffix == ".gz" else content).decode()


def test_the_kubelet_has_statistics_of_it(cluster: Cluster, web: str) -> None:
    def found() -> dict[str, Any]:
        summary = json.loads(cluster.kubectl("get", "--raw", f"/api/v1/nodes/{NODE}/proxy/stats/summary"))
        return next((one for one in summary["pods"] if one["podRef"]["name"] == web), {})

    def main() -> dict[str, Any]:
        return next((one for one in found().get("containers", []) if one["name"] == "main"), {})

    cluster.wait(lambda: main().get("cpu", {}).get("usageCoreNanoSeconds", 0) > 0, 60, "its CPU")
    cluster.wait(lambda: main().get("memory", {}).get("workingSetBytes", 0) > 0, 60, "its memory")


def test_a_pod_goes_on_while_server_and_kubelet_are_started_again(cluster: Cluster, server: Server, web: str) -> None:
    def read_page() -> str:
        return cluster.kubectl("exec", web, "-c", "main", "--", "cat", "/data/index.html", check=False)

    before = statuses(cluster, web)["main"]
    server.stop()
    server.start()
    # The kubelet dials again when it finds its connection broken.
    cluster.wait(lambda: read_page() == PAGE, 30, "an exec")
    cluster.stop_kubelet()
    cluster.start_kubelet()
    cluster.wait(lambda: statuses(cluster, web)["main"].get("ready", False), 60, "the pod")
    after = statuses(cluster, web)["main"]
    assert (after["containerID"], after["restartCount"]) == (before["containerID"], before["restartCount"])


@pytest.fixture
def from_cri(cluster: Cluster) -> Iterator[None]:
    """The kubelet takes events and statistics from the CRI, instead of relisting and of cAdvisor."""
    cluster.stop_kubelet()
    cluster.start_kubelet(featureGates={"EventedPLEG": True, "PodAndContainerStatsFromCRI": True})
    yield
    cluster.stop_kubelet()
    cluster.start_kubelet()


def test_events_and_statistics_from_the_cri(cluster: Cluster, from_cri: None) -> None:
    with running(cluster, pod("evented", container("main", "while true; do :; done"))) as name:
        cluster.kubectl("exec", name, "--", "sh", "-c", "kill -9 -1 || true", check=False)

        def cpu() -> float:
            metrics = cluster.kubectl("get", "--raw", f"/api/v1/nodes/{NODE}/proxy/metrics/cadvisor")
            lines = re.findall(
                rf'container_cpu_usage_seconds_total{{[^}}]*container="main"[^}}]*pod="{name}".* ([\d.e+]+)',
                metrics,
            )
            return max(map(float, lines), default=0.0)

        cluster.wait(lambda: cpu() >= 1, 60, "the metric of its CPU")


def test_a_sidecar_runs_once_with_events_from_the_cri(cluster: Cluster, server: Server, from_cri: None) -> None:
    """A kubelet of 1.37 started it again at each sync when PodSandboxStatus told a time."""
    sidecar = container("sidecar", "exec sleep 600", restartPolicy="Always")

    def copies(*which: str) -> list[str]:
        return crictl(server, "ps", "-q", "--name", "^sidecar$", *which).split()

    with running(cluster, pod("sidecars", container("main", "exec sleep 600"), initContainers=[sidecar])) as name:
        until = time.monotonic() + WATCHED
        while time.monotonic() < until:
            assert len(copies("-a")) == 1
            time.sleep(1)
        found = status(cluster, name)
        assert found["phase"] == "Running", json.dumps(found)
        assert "kubelet_running_containers" in cluster.kubectl("get", "--raw", f"/api/v1/nodes/{NODE}/proxy/metrics")
        crictl(server, "stop", "-t", "0", *copies())
        cluster.wait(lambda: (len(copies()), len(copies("-a"))) == (1, 2), 60, "the sidecar's next run")


def test_what_deleted_pods_leave_the_kubelet_removes(cluster: Cluster, server: Server) -> None:
    cluster.kubectl("delete", "pods", "--all", "--wait")
    cluster.wait(lambda: not crictl(server, "pods", "-q"), 150, "the kubelet's collection of what has ended")
