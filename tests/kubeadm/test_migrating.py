"""A node of a cluster of kubeadm moves from cri-dockerd to our server, and back, by the steps of docs/migrating.md."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.kubeadm.cluster import KUBELET_CONFIGS, KUBELET_FLAGS, PROGRAMS, KubeadmCluster, cluster
from tests.kubernetes.client import find
from tests.kubernetes.cri_dockerd import ENDPOINT, NAME, STATE, cri_dockerd, lenient_engine
from tests.kubernetes.leftovers import nothing_left
from tests.kubernetes.workloads import Deployment, deploy, restarts
from tests.node.server import Server

pytestmark = pytest.mark.timeout(600)

OUR_STATE = Path("/var/lib/dockershim")


@pytest.fixture(scope="module", autouse=True)
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with lenient_engine(tmp_path_factory.mktemp("runtime")):
        yield


def old_shim(state: Path = STATE) -> AbstractContextManager[int]:
    """Another cri-dockerd than the one before."""
    return cri_dockerd(find(NAME, os.environ[PROGRAMS]), state)


def dockershim(name: str, *flags: str) -> Server:
    """Ours, which takes the other one's pods over; it serves on the socket /run/``name``.sock."""
    return Server(name, (f"--adopt-from={STATE}", *flags))


@contextmanager
def no_container_is_restarted(made: KubeadmCluster) -> Iterator[None]:
    before = restarts(made)
    yield
    assert before.items() <= restarts(made).items()


def meets_a_new_one(made: KubeadmCluster, web: Deployment) -> None:
    """The kubelet makes pods, which reach those of ``web`` and are reached by them, and ends them."""
    new = deploy(made, "new", replicas=1)
    assert new.answers(web) == web.pods()
    assert web.answers(new) == new.pods()
    made.kubectl("delete", "deployment,service", "new", "--cascade=foreground", "--wait")


def test_a_node_moves_and_its_kubelet_is_told_of_our_socket() -> None:
    with nothing_left(), ExitStack() as shim:
        shim.enter_context(old_shim())
        with cluster(ENDPOINT) as made:
            web = deploy(made, "web", replicas=2)
            with no_container_is_restarted(made):
                shim.close()
                made.runtime = shim.enter_context(dockershim("dockershim")).target
                for path in (KUBELET_FLAGS, *KUBELET_CONFIGS):
                    path.write_text(path.read_text().replace(ENDPOINT, made.runtime))
                made.stop_kubelet()
                made.start_kubelet()
                meets_a_new_one(made, web)
        assert list((STATE / "sandbox").iterdir()) == []


def test_a_node_moves_while_the_kubelet_keeps_its_socket_and_moves_back() -> None:
    with nothing_left(), ExitStack() as shim:
        shim.enter_context(old_shim())
        with cluster(ENDPOINT) as made:
            web = deploy(made, "web", replicas=2)
            with no_container_is_restarted(made):
                shim.close()
                shim.enter_context(dockershim(NAME, f"--root-directory={OUR_STATE}"))
                meets_a_new_one(made, web)
            ours = deploy(made, "ours", replicas=1)
            with no_container_is_restarted(made):
                shim.close()
                shim.enter_context(old_shim(OUR_STATE))
                # A kubelet of 1.36 cannot exec through cri-dockerd 0.4.3, whose addresses have no scheme.
                deploy(made, "old", replicas=1)
            made.kubectl("delete", "pod", *ours.pods(), "--wait")
        # What we pinned, cri-dockerd does not know.
        subprocess.run("umount /run/netns/dockershim-*", shell=True, check=True)
