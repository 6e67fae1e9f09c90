"""The cluster of the tests: one for the session, in a test node."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator

import pytest

from tests.cluster.cluster import PROGRAMS, Cluster
from tests.kubernetes.leftovers import nothing_left
from tests.node.server import Server

if os.environ.get("TEST_NODE") != "1" or PROGRAMS not in os.environ:
    pytest.exit("tests/cluster runs by: make cluster ENGINE=20 (or 28)", returncode=2)


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """Our server. Its pods leave nothing."""
    with nothing_left(), Server() as started:
        yield started


@pytest.fixture(scope="session")
def cluster(server: Server) -> Iterator[Cluster]:
    """A Kubernetes of one node on it."""
    with Cluster(os.environ[PROGRAMS], server.target) as running:
        running.start_kubelet()
        yield running
        # The kubelet collects ended pods only after a while; the last test waits for that, unless FOCUS leaves it out.
        running.stop_kubelet()
        command = ["crictl", f"--runtime-endpoint={server.target}", "rmp", "--all", "--force"]
        subprocess.run(command, check=True, capture_output=True, timeout=60)
