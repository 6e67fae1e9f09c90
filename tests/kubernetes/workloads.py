"""What the tests run in a cluster."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from tests.kubernetes.client import Client

DOMAIN: Final = "cluster.local"
IMAGE: Final = "registry.k8s.io/e2e-test-images/agnhost:2.66.1"
PORT: Final = 8080


@dataclass(frozen=True, slots=True)
class Deployment:
    """A Deployment whose pods tell their names by HTTP, and the Service of the same name before it."""

    cluster: Client
    name: str

    @property
    def host(self) -> str:
        """The name of its Service."""
        return f"{self.name}.default.svc.{DOMAIN}"

    def pods(self) -> set[str]:
        """The names of its pods."""
        return {pod["metadata"]["name"] for pod in self.cluster.pods("-l", f"app={self.name}")}

    def answers(self, asked: Deployment, tries: int = 30) -> set[str]:
        """The names of the pods of another one that answered a pod of ours, which asked so many times."""
        command = f"for i in $(seq {tries}); do curl -s -m 15 http://{asked.host}/hostname && echo; done"
        told = self.cluster.kubectl("exec", f"deployment/{self.name}", "--", "sh", "-c", command)
        return set(told.split())


def deploy(
    cluster: Client,
    name: str,
    replicas: int,
    *,
    spec: Mapping[str, Any] | None = None,
    service: Mapping[str, Any] | None = None,
    host_port: int = 0,
    seconds: float = 80.0,
) -> Deployment:
    """Make it and wait until its pods are ready. Raises ClusterError.

    ``spec`` and ``service`` are added to the pods' specification and the Service's. With ``host_port`` each pod answers
    at this port of its node, too.
    """
    labels = {"app": name}
    # With the default of one second a pod of a busy machine is left out of its Service now and then.
    probe = {"httpGet": {"path": "/hostname", "port": PORT}, "periodSeconds": 1, "timeoutSeconds": 10}
    container = {
        "name": "main",
        "image": IMAGE,
        "args": ["netexec", f"--http-port={PORT}"],
        "readinessProbe": probe,
        "resources": {"requests": {"cpu": "10m"}},
        "ports": [{"containerPort": PORT, **({"hostPort": host_port} if host_port else {})}],
    }
    pod = {
        "metadata": {"labels": labels},
        "spec": {"terminationGracePeriodSeconds": 1, "containers": [container], **(spec or {})},
    }
    objects: list[dict[str, Any]] = [
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": name},
            "spec": {"replicas": replicas, "selector": {"matchLabels": labels}, "template": pod},
        },
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": name},
            "spec": {"selector": labels, "ports": [{"port": 80, "targetPort": PORT}], **(service or {})},
        },
    ]
    cluster.kubectl("apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))
    cluster.rolled_out(f"deployment/{name}", seconds)
    return Deployment(cluster, name)


def restarts(cluster: Client) -> dict[str, int]:
    """How often each container of all pods was started again, by its id."""
    pods = cluster.pods("--all-namespaces")
    statuses = [status for pod in pods for status in pod["status"].get("containerStatuses", [])]
    return {status["containerID"]: status["restartCount"] for status in statuses}
