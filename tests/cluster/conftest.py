"""The cluster of the tests: one for the session, in a test node."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing

import docker
import pytest

from tests.cluster.cluster import PROGRAMS, Cluster
from tests.node.server import Server
from tests.node.state import capture

if os.environ.get("TEST_NODE") != "1" or PROGRAMS not in os.environ:
    pytest.exit("tests/cluster runs by: make cluster ENGINE=20 (or 28)", returncode=2)


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """Our server. The containers and networks that are there at the end were there at the start."""
    with closing(docker.from_env()) as api:
        before = capture(api)
        started = Server()
        started.start()
        try:
            yield started
        finally:
            started.stop()
        gained = capture(api).gained(before)
    # A kubelet's own chains stay as long as the machine.
    left = [line for lines in gained.values() for line in lines if "KUBE-" not in line]
    assert left == [], "the tests left these behind"


@pytest.fixture(scope="session")
def cluster(server: Server) -> Iterator[Cluster]:
    """A Kubernetes of one node on it."""
    with Cluster(os.environ[PROGRAMS], server.target) as running:
        yield running
