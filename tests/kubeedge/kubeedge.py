"""KubeEdge inside a test node: cloudcore, next to an API server, and edgecore, whose runtime is our server.

They are on one machine here. edgecore has folders of its own, as both keep certificates in the same ones by default.
"""

from __future__ import annotations

import base64
import json
import subprocess
import urllib.request
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

import trustme

from tests.cluster.cluster import Cluster
from tests.kubernetes.client import ClusterError, end
from tests.kubernetes.interface import ADDRESS
from tests.node.cache import REPOSITORY

NODE: Final = "edge1"
FOLDER: Final = Path("/run/kubeedge")
#: The folder of the logs of the last run.
REPORTS: Final = REPOSITORY / "build/kubeedge"
#: Where edgecore serves the kubelet's API, to itself.
EDGE_API: Final = "http://127.0.0.1:10350"
#: The chain of cloudcore's rules, by which the API server's connections to edge nodes come to it.
CHAIN: Final = "TUNNEL-PORT"

_CLOUD: Final = FOLDER / "cloudcore.yaml"
_EDGE: Final = FOLDER / "edgecore.yaml"
_EDGE_CERTIFICATES: Final = {
    "CaFile": str(FOLDER / "edge/ca.crt"),
    "CertFile": str(FOLDER / "edge/edge.crt"),
    "PrivateKeyFile": str(FOLDER / "edge/edge.key"),
}


@dataclass(slots=True)
class KubeEdge:
    """``cluster`` is the API server's, without a kubelet; ``definitions`` is the folder of KubeEdge's resources.

    A context manager, in which the node has joined. Raises ClusterError when something does not start.
    """

    cluster: Cluster
    definitions: Path
    _started: ExitStack = field(default_factory=ExitStack)
    _cloudcore: subprocess.Popen[bytes] | None = None
    _edgecore: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        (FOLDER / "edge").mkdir(parents=True)
        with ExitStack() as undo:
            undo.enter_context(self._started)
            self._started.callback(self.stop_edge)
            self._started.callback(self.stop_cloudcore)
            self.cluster.kubectl("create", "--recursive", "-f", str(self.definitions))
            self._configure_cloud()
            self._start_cloudcore()
            _EDGE.write_text(json.dumps(_edge(self.cluster.runtime, self._token())))
            self.start_edge()
            self.wait_ready()
            self._started = undo.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._started.close()

    def start_edge(self) -> None:
        """Start edgecore, and wait until its kubelet answers."""
        self._edgecore = self.cluster.start("edgecore", f"--config={_EDGE}")
        self.cluster.wait(self._edge_answers, 150, "edgecore")

    def stop_edge(self) -> None:
        """Its pods go on."""
        if self._edgecore is not None:
            end(self._edgecore)

    def take_cloud_away(self) -> None:
        """Stop cloudcore, the API server and etcd."""
        self.stop_cloudcore()
        self.cluster.stop_control_plane()

    def bring_cloud_back(self) -> None:
        """Start them, and wait until they reach the node again."""
        self.cluster.start_control_plane()
        self._start_cloudcore()
        self.wait_ready()

    def stop_cloudcore(self) -> None:
        """Nothing reaches the edge then."""
        if self._cloudcore is not None:
            end(self._cloudcore)

    def wait_ready(self) -> None:
        """Wait until the node is ready, and kubectl finds its way to it."""
        self.cluster.wait(lambda: self.cluster.is_ready(NODE), 150, "the node of edgecore")
        self.cluster.wait(_has_rules, 150, "cloudcore's rules")
        self.cluster.wait(self._is_reached, 150, "the way to the node")

    def revive(self) -> None:
        """Start edgecore again if it has ended, as its unit of systemd does (`Restart=always`).

        Some execs end edgecore 1.23 ("send on closed channel"): cloudcore sends the end of an exec several times, and
        edgecore does not expect the later ones.
        """
        if self._edgecore is not None and self._edgecore.poll() is not None:
            self.start_edge()
            self.wait_ready()

    def knows(self, name: str) -> bool:
        """Whether edgecore has a pod. What it says of its status is what the cloud had last."""
        try:
            with urllib.request.urlopen(f"{EDGE_API}/pods", timeout=20) as answer:
                found: list[dict[str, Any]] = json.loads(answer.read())["items"] or []
        except OSError:
            return False
        return name in {pod["metadata"]["name"] for pod in found}

    def _configure_cloud(self) -> None:
        authority = trustme.CA()
        issued = authority.issue_cert(ADDRESS)
        authority.cert_pem.write_to_path(FOLDER / "stream-ca.crt")
        issued.cert_chain_pems[0].write_to_path(FOLDER / "stream.crt")
        issued.private_key_pem.write_to_path(FOLDER / "stream.key")
        _CLOUD.write_text(json.dumps(_cloud(self.cluster.connections)))

    def _start_cloudcore(self) -> None:
        self._cloudcore = self.cluster.start("cloudcore", f"--config={_CLOUD}")

    def _token(self) -> str:
        """What a new edge shows to be let in. cloudcore makes it."""
        command = ("get", "secret", "-n", "kubeedge", "tokensecret", "-o", "jsonpath={.data.tokendata}")
        self.cluster.wait(lambda: bool(self.cluster.kubectl(*command, check=False)), 150, "cloudcore's token")
        return base64.b64decode(self.cluster.kubectl(*command)).decode()

    def _edge_answers(self) -> bool:
        if self._edgecore is not None and self._edgecore.poll() is not None:
            raise ClusterError(f"edgecore ended with {self._edgecore.returncode}")
        try:
            with urllib.request.urlopen(f"{EDGE_API}/healthz", timeout=20) as answer:
                return bool(answer.read() == b"ok")
        except OSError:
            return False

    def _is_reached(self) -> bool:
        return bool(self.cluster.kubectl("get", "--raw", f"/api/v1/nodes/{NODE}/proxy/stats/summary"))


def _has_rules() -> bool:
    rules = subprocess.run(["iptables", "-t", "nat", "-S", CHAIN], capture_output=True, text=True).stdout
    return f"-A {CHAIN}" in rules


def _cloud(connections: Path) -> Mapping[str, Any]:
    """What cloudcore is told in addition to its defaults."""
    stream = {
        "enable": True,
        "tlsStreamCAFile": str(FOLDER / "stream-ca.crt"),
        "tlsStreamCertFile": str(FOLDER / "stream.crt"),
        "tlsStreamPrivateKeyFile": str(FOLDER / "stream.key"),
    }
    hub = {"advertiseAddress": [ADDRESS], "unixsocket": {"enable": False, "address": f"unix://{FOLDER / 'hub.sock'}"}}
    return {
        "kind": "CloudCore",
        "apiVersion": "cloudcore.config.kubeedge.io/v1alpha1",
        "kubeAPIConfig": {"kubeConfig": str(connections)},
        "modules": {"cloudHub": hub, "cloudStream": stream},
    }


def _edge(runtime: str, token: str) -> Mapping[str, Any]:
    """What edgecore is told in addition to its defaults."""
    kubelet = {
        "containerRuntimeEndpoint": runtime,
        "imageServiceEndpoint": runtime,
        # Not the engine's: edgecore's kubelet asks the server.
        "cgroupDriver": "systemd",
        "staticPodPath": str(FOLDER / "edge/pods"),
        "volumePluginDir": str(FOLDER / "edge/plugins"),
        "syncFrequency": "5s",
        # A test node's machine may have any of these.
        "enforceNodeAllocatable": [],
        "evictionHard": dict.fromkeys(
            ("memory.available", "nodefs.available", "nodefs.inodesFree", "imagefs.available"), "0%"
        ),
        "imageGCHighThresholdPercent": 100,
    }
    return {
        "kind": "EdgeCore",
        "apiVersion": "edgecore.config.kubeedge.io/v1alpha2",
        "database": {"dataSource": str(FOLDER / "edge/edgecore.db")},
        "modules": {
            "edged": {
                "hostnameOverride": NODE,
                "nodeIP": ADDRESS,
                "rootDirectory": str(FOLDER / "edge/kubelet"),
                "tailoredKubeletConfig": kubelet,
            },
            "edgeHub": {
                **{f"tls{name}": path for name, path in _EDGE_CERTIFICATES.items()},
                "token": token,
                "httpServer": f"https://{ADDRESS}:10002",
                "websocket": {"server": f"{ADDRESS}:10000"},
            },
            "edgeStream": {
                "enable": True,
                "server": f"{ADDRESS}:10004",
                "tlsTunnelCAFile": _EDGE_CERTIFICATES["CaFile"],
                "tlsTunnelCertFile": _EDGE_CERTIFICATES["CertFile"],
                "tlsTunnelPrivateKeyFile": _EDGE_CERTIFICATES["PrivateKeyFile"],
            },
            "deviceTwin": {"dmiSockPath": f"{FOLDER / 'edge'}/"},
            # It needs an MQTT broker, which has nothing to do with pods.
            "eventBus": {"enable": False},
        },
    }
