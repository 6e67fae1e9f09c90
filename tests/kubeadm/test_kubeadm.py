"""A cluster as `kubeadm init` makes it on our server: control plane, name service, services, and what goes on."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.kubeadm.cluster import KubeadmCluster, cluster
from tests.kubernetes.leftovers import nothing_left
from tests.kubernetes.workloads import deploy, restarts
from tests.node.engine import Engine
from tests.node.server import Server

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """Our server, on an engine whose containers outlive it. Of all its pods nothing is there at the end."""
    Engine().restart("--live-restore")
    with nothing_left(), Server() as started:
        yield started


@pytest.fixture(scope="module")
def made(server: Server) -> Iterator[KubeadmCluster]:
    """A cluster on it, after whose `kubeadm reset` no pod and no container is there."""
    with cluster(server.target) as running:
        yield running


def test_the_control_plane_runs_on_our_server(made: KubeadmCluster) -> None:
    node = json.loads(made.kubectl("get", "nodes", "-o", "json"))["items"][0]["status"]["nodeInfo"]
    assert node["containerRuntimeVersion"].startswith("docker://")
    parts = {"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kube-proxy"}

    def shown() -> set[str]:
        return {pod["metadata"]["name"].rpartition("-")[0] for pod in made.pods("-n", "kube-system")}

    # The kubelet shows each static pod to the API server only when it next looks at it.
    made.wait(lambda: parts <= shown(), 60, "a pod of the control plane")


def test_a_service_answers_by_its_name_for_all_pods_of_its_deployment(made: KubeadmCluster) -> None:
    web = deploy(made, "web", replicas=2)
    assert len(web.pods()) == 2
    assert web.answers(web) == web.pods()


def test_the_cluster_goes_on_while_server_and_engine_are_started_again(made: KubeadmCluster, server: Server) -> None:
    web = deploy(made, "steady", replicas=1)
    before = restarts(made)
    server.stop()
    Engine().restart("--live-restore")
    server.start()
    made.wait(made.is_ready, 60, "the node")
    later = deploy(made, "later", replicas=1)
    assert later.answers(web) == web.pods()
    assert web.answers(later) == later.pods()
    assert before.items() <= restarts(made).items()
