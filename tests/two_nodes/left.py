"""What a node has of pods: in the engine, and in the folders of server and CNI plugins."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from tests.two_nodes.cluster import TwoNodes
from tests.vm.guest import Guest

CHECKPOINTS = "/var/lib/dockershim/sandbox"
NETWORK = "cbr0"  # the name in flannel's CNI configuration


@dataclass(frozen=True, slots=True)
class Left:
    """By ids of sandboxes. ``on_network`` are the ready ones that have a network of their own."""

    ready: frozenset[str]
    on_network: frozenset[str]
    dead: dict[str, str]
    checkpoints: frozenset[str]
    pins: frozenset[str]
    addresses: frozenset[str]
    flannel: frozenset[str]
    results: frozenset[str]
    links: int
    containers: frozenset[str]
    unknown: frozenset[str]

    def odd(self) -> dict[str, object]:
        """What belongs to no sandbox that runs, and what a sandbox that runs lacks; nothing when all is well.

        A kubelet keeps the last dead container of each container, and with it its sandbox, which has a checkpoint.
        """
        expected: dict[str, tuple[object, object]] = {
            "checkpoints": (self.checkpoints, self.ready | self.dead.keys()),
            "pins": (self.pins, self.on_network),
            "addresses": (self.addresses, self.on_network),
            "flannel's files": (self.flannel, self.on_network),
            "results": (self.results, self.on_network),
            "links": (self.links, len(self.on_network)),
            "containers": (self.containers, frozenset()),
            "sandboxes of pods that are gone": (self.unknown, frozenset()),
            "dead sandboxes": (len(self.dead), len(set(self.dead.values()))),
        }
        return {name: pair for name, pair in expected.items() if pair[0] != pair[1]}


def left(made: TwoNodes, guest: Guest) -> Left:
    """What is on a node now."""
    sandboxes = json.loads(guest.run("crictl", "pods", "-o", "json"))["items"]
    containers = json.loads(guest.run("crictl", "ps", "--all", "-o", "json"))["containers"]
    pods = made.pods("--all-namespaces", f"--field-selector=spec.nodeName={guest.name}")
    on_host = {_uid(pod) for pod in pods if pod["spec"].get("hostNetwork")}
    uids = {_uid(pod) for pod in pods}
    ready = [one for one in sandboxes if one["state"] == "SANDBOX_READY"]
    known = {one["id"] for one in (*sandboxes, *containers)}
    return Left(
        ready=frozenset(one["id"] for one in ready),
        on_network=frozenset(one["id"] for one in ready if one["metadata"]["uid"] not in on_host),
        dead={one["id"]: one["metadata"]["uid"] for one in sandboxes if one not in ready},
        checkpoints=_names(guest, f"ls {CHECKPOINTS}"),
        pins=_names(guest, "ls /run/netns | grep ^dockershim- | sed 's/.*-//'"),
        addresses=_names(guest, f"cd /var/lib/cni/networks/{NETWORK} && head -qn 1 10.* | tr -d '\\r'"),
        flannel=_names(guest, "ls /var/lib/cni/flannel"),
        results=_names(guest, f"ls /var/lib/cni/cache/results | sed 's/^{NETWORK}-//; s/-eth0$//'"),
        links=len(_names(guest, "ls /sys/class/net/cni0/brif")),
        containers=_names(guest, "docker ps --all --quiet --no-trunc") - known,
        unknown=frozenset(one["id"] for one in sandboxes if one["metadata"]["uid"] not in uids),
    )


def _uid(pod: dict[str, Any]) -> str:
    """What the node knows a pod by: a static pod has another uid there than its mirror at the API server."""
    metadata = pod["metadata"]
    return str(metadata.get("annotations", {}).get("kubernetes.io/config.mirror") or metadata["uid"])


def _names(guest: Guest, script: str) -> frozenset[str]:
    return frozenset(guest.sh(script, check=False).split())
