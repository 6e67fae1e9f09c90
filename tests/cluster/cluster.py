"""A Kubernetes of one node inside a test node: etcd, kube-apiserver, and a kubelet whose runtime is our server."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from tests.kubernetes import programs
from tests.kubernetes.client import Client, end
from tests.kubernetes.interface import ADDRESS, interface
from tests.node.cache import entry, locked
from tests.node.supplies import BOOKWORM

#: The variable with the folders of etcd, kube-apiserver, kubelet and kubectl, as in PATH.
PROGRAMS = "CLUSTER_PROGRAMS"
NODE = "node1"
TOKEN = "a-token-of-a-test"
FOLDER = Path("/run/cluster")
LOGS = FOLDER / "pod-logs"
API = "https://127.0.0.1:6443"
CONNECTIONS = f"""
apiVersion: v1
kind: Config
current-context: test
contexts: [{{name: test, context: {{cluster: test, user: test}}}}]
clusters: [{{name: test, cluster: {{server: "{API}", insecure-skip-tls-verify: true}}}}]
users: [{{name: test, user: {{token: {TOKEN}}}}}]
"""
KUBELET: Mapping[str, Any] = {
    "apiVersion": "kubelet.config.k8s.io/v1beta1",
    "kind": "KubeletConfiguration",
    "podLogsDir": str(LOGS),
    "volumePluginDir": str(FOLDER / "plugins"),
    "resolvConf": str(FOLDER / "resolv.conf"),
    # A test node's machine may have any of these.
    "failCgroupV1": False,
    "failSwapOn": False,
    "enforceNodeAllocatable": [],
    "evictionHard": {"memory.available": "0%"},
    "imageGCHighThresholdPercent": 100,
    "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
    "authorization": {"mode": "AlwaysAllow"},
    # Small and often, so that a test sees rotations.
    "containerLogMaxSize": "64Ki",
    "containerLogMaxFiles": 5,
    "containerLogMonitorInterval": "3s",
    "syncFrequency": "5s",
}


def provide_control_plane() -> tuple[Path, ...]:
    """The cache's folders with etcd, kubectl and the API server of the newest Kubernetes. SetupError without them."""
    with locked("etcd"):
        etcd = BOOKWORM.unpack(("etcd-server",), entry("etcd", "etcd-server"))
    newest = (programs.NEWEST.provide(name) for name in ("kubectl", "kube-apiserver"))
    return etcd / "usr/bin", *(path.parent for path in newest)


@dataclass(slots=True)
class Cluster(Client):
    """``programs`` are the folders of etcd, kube-apiserver, kubelet and kubectl; ``runtime`` the CRI socket's address.

    A context manager, which starts all but the kubelet. Raises ClusterError when something does not start.
    """

    runtime: str
    connections: Path = field(default=FOLDER / "connections", kw_only=True)
    logs: Path = field(default=FOLDER, kw_only=True)
    _started: ExitStack = field(default_factory=ExitStack)
    _control_plane: list[subprocess.Popen[bytes]] = field(default_factory=list)
    _kubelet: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        FOLDER.mkdir()
        self.connections.write_text(CONNECTIONS)
        (FOLDER / "tokens").write_text(f"{TOKEN},admin,admin,system:masters\n")
        (FOLDER / "resolv.conf").write_text("nameserver 127.0.0.1\n")
        with ExitStack() as undo:
            undo.enter_context(self._started)
            self._started.enter_context(interface())
            self.start_control_plane()
            self._started = undo.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._started.close()

    def start_control_plane(self) -> None:
        """Start etcd and the API server, which find what they had before."""
        self._control_plane = [self._etcd(), self._api_server()]
        self.wait(lambda: self.kubectl("get", "--raw", "/readyz", check=False) == "ok", 60, "the API server")

    def stop_control_plane(self) -> None:
        """What runs on the nodes goes on."""
        for process in reversed(self._control_plane):
            end(process)

    def _etcd(self) -> subprocess.Popen[bytes]:
        client, peer = "http://127.0.0.1:2379", "http://127.0.0.1:2380"
        return self._run(
            "etcd",
            f"--data-dir={FOLDER / 'etcd'}",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
        )

    def _api_server(self) -> subprocess.Popen[bytes]:
        key = FOLDER / "service-accounts.pem"
        if not key.exists():
            subprocess.run(["openssl", "genrsa", "-out", key, "2048"], check=True, capture_output=True)
        return self._run(
            "kube-apiserver",
            "--etcd-servers=http://127.0.0.1:2379",
            "--bind-address=127.0.0.1",
            f"--advertise-address={ADDRESS}",
            f"--cert-dir={FOLDER / 'api-server'}",
            f"--token-auth-file={FOLDER / 'tokens'}",
            "--authorization-mode=AlwaysAllow",
            "--service-cluster-ip-range=10.96.0.0/24",
            "--service-account-issuer=https://test",
            f"--service-account-key-file={key}",
            f"--service-account-signing-key-file={key}",
            "--disable-admission-plugins=ServiceAccount",
            "--kubelet-preferred-address-types=InternalIP",
            "--allow-privileged",
        )

    def start_kubelet(self, **settings: Any) -> None:
        """``settings`` are added to those that the tests need."""
        config = FOLDER / "kubelet.json"
        config.write_text(json.dumps({**KUBELET, "containerRuntimeEndpoint": self.runtime, **settings}))
        self._kubelet = self._run(
            "kubelet",
            f"--config={config}",
            f"--kubeconfig={self.connections}",
            f"--root-dir={FOLDER / 'kubelet'}",
            f"--cert-dir={FOLDER / 'kubelet-pki'}",
            f"--hostname-override={NODE}",
            f"--node-ip={ADDRESS}",
        )
        self.wait(lambda: self.is_ready(NODE), 60, "the node")

    def stop_kubelet(self) -> None:
        """Its pods go on."""
        if self._kubelet is not None:
            end(self._kubelet)

    def is_ready(self, node: str) -> bool:
        """Whether the API server has the node as ready."""
        ready = '{.status.conditions[?(@.type=="Ready")].status}'
        return self.kubectl("get", "node", node, "-o", f"jsonpath={ready}", check=False) == "True"

    def _run(self, program: str, *arguments: str) -> subprocess.Popen[bytes]:
        process = self.start(program, *arguments)
        self._started.callback(end, process)
        return process
