"""A node with many pods loses its power."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.kubernetes.workloads import IMAGE
from tests.two_nodes.cluster import PATIENCE, WORKER, TwoNodes
from tests.two_nodes.left import left

NAME = "many"
PODS = 20


def statuses(made: TwoNodes) -> list[dict[str, Any]]:
    """Of the containers of all its pods."""
    pods = made.pods("-l", f"app={NAME}")
    return [status for pod in pods for status in pod["status"].get("containerStatuses", [])]


def running(made: TwoNodes) -> dict[str, int]:
    """The ids of those that are ready, with how often each was started again."""
    return {one["containerID"]: one["restartCount"] for one in statuses(made) if one["ready"]}


@pytest.fixture
def many(made: TwoNodes) -> Iterator[dict[str, int]]:
    """A Deployment of many pods, all on the worker."""
    labels = {"app": NAME}
    container = {"name": "main", "image": IMAGE, "args": ["pause"]}
    spec = {
        "terminationGracePeriodSeconds": 1,
        "nodeSelector": {"kubernetes.io/hostname": WORKER},
        "containers": [container],
    }
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": NAME},
        "spec": {
            "replicas": PODS,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": spec},
        },
    }
    made.kubectl("apply", "-f", "-", stdin=json.dumps(deployment))
    made.timed(f"{PODS} pods", lambda: made.wait(lambda: len(running(made)) == PODS, PATIENCE, "the pods"))
    yield running(made)
    made.kubectl("delete", "deployment", NAME, "--ignore-not-found", "--cascade=foreground")


def test_all_pods_of_a_node_that_lost_its_power_run_again_and_nothing_else_is_left(
    made: TwoNodes, many: dict[str, int]
) -> None:
    made.wait(lambda: not left(made, made.worker).odd(), PATIENCE, "a node with nothing odd on it")
    before = left(made, made.worker)
    made.worker.cut_power()
    made.timed("the worker's boot after the power cut", made.worker.boot)

    def run_again() -> bool:
        now = running(made)
        return len(now) == PODS and not now.keys() & many.keys()

    made.timed(f"{PODS} pods again", lambda: made.wait(run_again, PATIENCE, "the pods"))
    made.timed(
        "nothing of the earlier ones", lambda: made.wait(lambda: not left(made, made.worker).odd(), PATIENCE, "")
    )
    now = left(made, made.worker)
    assert not now.ready & before.ready
    assert now.dead.keys() <= before.ready
    assert "Traceback" not in made.worker.journal()
    made.kubectl("delete", "deployment", NAME, "--ignore-not-found", "--cascade=foreground", "--wait")
    of_many = len(many)

    def gone() -> bool:
        found = left(made, made.worker)
        return not found.odd() and len(found.on_network) == len(before.on_network) - of_many

    made.timed("the removal of all", lambda: made.wait(gone, PATIENCE, "the end of the pods"))
