"""A cluster of two guests, as its operator makes it: `kubeadm init`, a network of pods, `kubeadm join`."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from tests.kubernetes import flannel
from tests.kubernetes.client import Client, ClusterError
from tests.kubernetes.programs import NEWEST
from tests.node.cache import say
from tests.vm.guest import CRI_SOCKET, Guest
from tests.vm.network import Network
from tests.vm.running import Site

CONTROL: Final = "control"
WORKER: Final = "worker"
SOCKET: Final = f"unix://{CRI_SOCKET}"
PODS: Final = "10.244.0.0/16"  # what flannel's manifest says
CONFIG: Final = "/root/kubeadm.yaml"
API: Final = "kubeadm.k8s.io/v1beta4"
# How long kubeadm waits, and the startup probes of its pods: on a busy machine a guest has a tenth of a processor.
TIMEOUTS: Final = dict.fromkeys(
    ("controlPlaneComponentHealthCheck", "kubeletHealthCheck", "kubernetesAPICall", "tlsBootstrap", "discovery"), "10m"
)
# There is one of each: a lease that one cannot renew in time on a busy machine would only end it.
ALONE: Final = {"extraArgs": [{"name": "leader-elect", "value": "false"}]}


def init_configuration(socket: str, **more: Any) -> tuple[Mapping[str, Any], ...]:
    """The configuration of `kubeadm init` on a runtime with this socket; ``more`` are keys of InitConfiguration."""
    return (
        {
            "kind": "InitConfiguration",
            # User Mode Linux has one processor.
            "nodeRegistration": {"criSocket": socket, "ignorePreflightErrors": ["NumCPU"]},
            "timeouts": TIMEOUTS,
            **more,
        },
        {
            "kind": "ClusterConfiguration",
            "kubernetesVersion": f"v{NEWEST.version}",
            "networking": {"podSubnet": PODS},
            "controllerManager": ALONE,
            "scheduler": ALONE,
        },
    )


ADMIN: Final = "/etc/kubernetes/admin.conf"
#: Seconds for one step of kubeadm, and for pods that have to be pulled and started.
PATIENCE: Final = 600.0
PAUSE: Final = 2.0
#: What kubectl says when the API server did not take its request in time, as one of a busy machine.
UNHEARD: Final = ("TLS handshake timeout", "connection refused", "was refused", "i/o timeout", "unexpected EOF")
# Reads an URL from where it runs.
_GET: Final = """
import sys, urllib.request
with urllib.request.urlopen(sys.argv[1], timeout=50) as answer:
    sys.stdout.buffer.write(answer.read())
"""


@dataclass(slots=True)
class GuestCluster(Client):
    """A cluster whose control plane is a guest. kubectl runs on this machine, on the network of the guests."""

    network: Network
    control: Guest
    #: How long each step of making it took.
    took: dict[str, float] = field(default_factory=dict, kw_only=True)

    def kubectl_command(self, *arguments: str) -> list[str]:
        return list(map(str, self.network.inside(*Client.kubectl_command(self, *arguments))))

    def kubectl(
        self,
        *arguments: str,
        check: bool = True,
        stdin: str = "",
        env: Mapping[str, str] | None = None,
        timeout: float = PATIENCE,
    ) -> str:
        """The same as any client's, but what the API server did not hear is said again."""
        end = time.monotonic() + timeout
        while True:
            try:
                return Client.kubectl(self, *arguments, check=check, stdin=stdin, env=env, timeout=timeout)
            except ClusterError as error:
                if time.monotonic() > end or not any(words in str(error) for words in UNHEARD):
                    raise
            time.sleep(self.pause)

    def ready(self) -> set[str]:
        """The names of the nodes that are ready."""
        shown = '{range .items[*]}{.metadata.name}={.status.conditions[?(@.type=="Ready")].status}{"\\n"}{end}'
        lines = self.kubectl("get", "nodes", "-o", f"jsonpath={shown}", check=False).split()
        return {line.removesuffix("=True") for line in lines if line.endswith("=True")}

    def timed(self, step: str, do: Callable[[], object]) -> None:
        """Do a step, and tell how long it took."""
        began = time.monotonic()
        do()
        self.took[step] = time.monotonic() - began
        say(f"{step}: {self.took[step]:.0f} s")

    def init(self, socket: str = SOCKET, **more: Any) -> None:
        """`kubeadm init` with ``init_configuration``."""
        self.kubeadm(self.control, "init", *init_configuration(socket, **more))
        self.control.fetch(ADMIN, self.connections)

    def kubeadm(self, guest: Guest, what: str, *configuration: Mapping[str, Any]) -> None:
        """Run kubeadm with a configuration. Raises ClusterError with all that it said."""
        # JSON is YAML.
        text = "\n---\n".join(json.dumps({"apiVersion": API, **part}, indent=1) for part in configuration)
        guest.sh(f"cat >{CONFIG}", input=text)
        ended = guest.ended(f"kubeadm {what} --config={CONFIG}", timeout=2 * PATIENCE)
        with (self.logs / f"kubeadm-{guest.name}.log").open("a") as log:
            log.write(ended.output + ended.errors)
        if ended.code:
            raise ClusterError(f"kubeadm {what} ended with {ended.code}:\n{ended.output}{ended.errors}")


@dataclass(slots=True)
class TwoNodes(GuestCluster):
    """A cluster of two guests."""

    worker: Guest

    @property
    def nodes(self) -> tuple[Guest, Guest]:
        return self.control, self.worker

    def get(self, url: str) -> str:
        """What an URL answers to a machine next to the nodes. Raises ClusterError."""
        words = self.network.inside(sys.executable, "-c", _GET, url)
        done = subprocess.run(words, capture_output=True, text=True, timeout=60)
        if done.returncode:
            raise ClusterError(f"{url}: {done.stderr.strip().rpartition(chr(10))[2]}")
        return done.stdout

    def hears(self, url: str, tries: int) -> set[str]:
        """What an URL answered so many times."""
        return {self.get(url) for _ in range(tries)}

    def wait_ready(self) -> None:
        """Wait until both nodes are ready, and the pods of Kubernetes and of flannel on them."""
        self.wait(lambda: self.ready() == {CONTROL, WORKER}, PATIENCE, "the nodes")
        for namespace in ("kube-flannel", "kube-system"):
            self.wait(partial(self.runs_all, namespace), PATIENCE, f"the pods of {namespace}")

    def make(self) -> None:
        """Make the cluster of two guests that are up."""
        self.timed("kubeadm init", self.init)
        self.timed("kubeadm join", self._join)
        self.timed("flannel", self._add_network)
        self.timed("both nodes ready", self.wait_ready)

    def _add_network(self) -> None:
        # It ends, and is started again after longer and longer pauses, while there are no Services.
        self.rolled_out("daemonset/kube-proxy", PATIENCE, "kube-system")
        self.kubectl("apply", "-f", "-", stdin=flannel.manifest())

    def _join(self) -> None:
        told = self.control.run("kubeadm", "token", "create", "--print-join-command", timeout=PATIENCE).split()
        token, pin = (told[told.index(option) + 1] for option in ("--token", "--discovery-token-ca-cert-hash"))
        discovery = {"apiServerEndpoint": told[2], "token": token, "caCertHashes": [pin]}
        self.kubeadm(
            self.worker,
            "join",
            {
                "kind": "JoinConfiguration",
                "nodeRegistration": {"criSocket": SOCKET},
                "discovery": {"bootstrapToken": discovery},
                "timeouts": TIMEOUTS,
            },
        )


@contextmanager
def cluster(place: Site) -> Iterator[TwoNodes]:
    """The cluster, of two new guests of the place."""
    control, worker = place.add(CONTROL), place.add(WORKER)
    folder = place.folder / "cluster"
    folder.mkdir()
    programs = str(NEWEST.provide("kubectl").parent)
    made = TwoNodes(
        programs, place.network, control, worker, connections=folder / "admin.conf", logs=folder, pause=PAUSE
    )

    def boot() -> None:
        for guest in made.nodes:
            guest.switch_on()
        for guest in made.nodes:
            guest.wait_up()

    made.timed("boot", boot)
    made.make()
    yield made
