"""A cluster of one node inside a test node, as its operator makes it: `kubeadm init`, and `kubeadm reset`."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

from tests.kubernetes.client import Client, ClusterError, end
from tests.kubernetes.interface import ADDRESS, interface
from tests.kubernetes.workloads import DOMAIN
from tests.node.inside import REGISTRY

#: Variables: the folders of kubeadm, kubelet and kubectl, as in PATH; the storage folders of registries, likewise; and
#: the version of Kubernetes, as 1.37.2.
PROGRAMS: Final = "KUBEADM_PROGRAMS"
IMAGES: Final = "KUBEADM_IMAGES"
VERSION: Final = "KUBEADM_VERSION"
FOLDER: Final = Path("/run/kubeadm-test")
KUBELET: Final = Path("/var/lib/kubelet")
KUBELET_FLAGS: Final = KUBELET / "kubeadm-flags.env"
KUBELET_CONFIGS: Final = (KUBELET / "config.yaml", KUBELET / "instance-config.yaml")
# The unit of the kubelet without systemd: it waits for kubeadm's files and reads them as that unit does.
KUBELET_SERVICE: Final = f"""
until test -e {KUBELET_CONFIGS[0]}; do sleep 0.1; done
test ! -e {KUBELET_FLAGS} || . {KUBELET_FLAGS}
exec kubelet --config={KUBELET_CONFIGS[0]} --kubeconfig=/etc/kubernetes/kubelet.conf \
  --bootstrap-kubeconfig=/etc/kubernetes/bootstrap-kubelet.conf $KUBELET_KUBEADM_ARGS
"""
# Flex volumes are looked for in /usr by default, which is the machine's.
PLUGINS: Final = str(KUBELET / "plugins")
# A test node's machine may have cgroup v1, and swap.
IGNORED: Final = "SystemVerification,Swap"


def _configuration(runtime: str) -> str:
    node = {
        "name": socket.gethostname(),
        "criSocket": runtime,
        "kubeletExtraArgs": [{"name": "node-ip", "value": ADDRESS}],
        # Pods run beside the control plane: there is no other node.
        "taints": [],
    }
    parts: tuple[Mapping[str, Any], ...] = (
        {
            "apiVersion": "kubeadm.k8s.io/v1beta4",
            "kind": "InitConfiguration",
            "localAPIEndpoint": {"advertiseAddress": ADDRESS},
            "nodeRegistration": node,
        },
        {
            "apiVersion": "kubeadm.k8s.io/v1beta4",
            "kind": "ClusterConfiguration",
            "kubernetesVersion": f"v{os.environ[VERSION]}",
            "networking": {"podSubnet": "10.88.0.0/16", "serviceSubnet": "10.96.0.0/16", "dnsDomain": DOMAIN},
            "controllerManager": {"extraArgs": [{"name": "flex-volume-plugin-dir", "value": PLUGINS}]},
        },
        {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "cgroupDriver": "cgroupfs",
            "volumePluginDir": PLUGINS,
            # CoreDNS asks the servers in it what it does not know, and ends if that is itself, as 127.0.0.1 is.
            "resolvConf": str(FOLDER / "resolv.conf"),
            "failCgroupV1": False,
            "failSwapOn": False,
            "evictionHard": {"memory.available": "0%"},
            "imageGCHighThresholdPercent": 100,
        },
        # The size of the table of connections is the machine's.
        {
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "conntrack": {"maxPerCore": 0, "min": 0},
        },
    )
    # JSON is YAML.
    return "\n---\n".join(json.dumps(part, indent=1) for part in parts)


@dataclass(slots=True)
class KubeadmCluster(Client):
    """``programs`` are the folders of kubeadm, kubelet and kubectl; ``runtime`` the address of the CRI socket.

    A context manager. Raises ClusterError when something does not start, or when `kubeadm reset` fails.
    """

    runtime: str
    connections: Path = field(default=Path("/etc/kubernetes/admin.conf"), kw_only=True)
    logs: Path = field(default=FOLDER, kw_only=True)
    _kubelet: subprocess.Popen[bytes] | None = None
    _undo: ExitStack = field(default_factory=ExitStack)

    def __enter__(self) -> Self:
        shutil.rmtree(FOLDER, ignore_errors=True)
        FOLDER.mkdir()
        (FOLDER / "resolv.conf").write_text("nameserver 10.99.0.254\n")
        config = FOLDER / "kubeadm.yaml"
        config.write_text(_configuration(self.runtime))
        with ExitStack() as undo:
            undo.enter_context(interface())
            undo.callback(self._reset)
            self.start_kubelet()
            self.kubeadm("init", f"--config={config}", f"--ignore-preflight-errors={IGNORED}")
            self.wait(self.is_ready, 120, "the node")
            self.wait(self.runs_all, 120, "the pods of kube-system")
            self._undo = undo.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._undo.close()

    def _reset(self) -> None:
        self.stop_kubelet()
        # kubeadm 1.36 looks for the sockets of the runtimes that it knows, unless it is told.
        self.kubeadm("reset", "--force", f"--cri-socket={self.runtime}")

    def kubeadm(self, *arguments: str) -> None:
        """Run kubeadm. Raises ClusterError with all that it said."""
        done = subprocess.run(
            [self.find("kubeadm"), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=600,
            env=self.environment(),
        )
        with (self.logs / "kubeadm.log").open("a") as log:
            log.write(done.stdout)
        if done.returncode:
            raise ClusterError(f"kubeadm {' '.join(arguments)}: {done.returncode}\n{done.stdout}\n{self.log_ends()}")

    def start_kubelet(self) -> None:
        """What `systemctl start kubelet` does."""
        self._kubelet = self.start("sh", "-c", KUBELET_SERVICE, log="kubelet")

    def stop_kubelet(self) -> None:
        """What `systemctl stop kubelet` does. Its pods go on."""
        if self._kubelet is not None:
            end(self._kubelet)
            self._kubelet = None

    def is_ready(self) -> bool:
        """Whether the API server says that the node is ready."""
        ready = '{.items[*].status.conditions[?(@.type=="Ready")].status}'
        return self.kubectl("get", "nodes", "-o", f"jsonpath={ready}", check=False) == "True"


@contextmanager
def cluster(runtime: str) -> Iterator[KubeadmCluster]:
    """A cluster whose kubelet uses the CRI socket at the address ``runtime``."""
    for folder in os.environ[IMAGES].split(os.pathsep):
        shutil.copytree(folder, REGISTRY, dirs_exist_ok=True)
    with KubeadmCluster(os.environ[PROGRAMS], runtime) as running:
        yield running
