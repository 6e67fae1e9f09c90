"""The KubeEdge of the tests: one for the session, in a test node."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import docker
import pytest
from docker import DockerClient

from tests.cluster.cluster import PROGRAMS, Cluster
from tests.kubeedge.kubeedge import REPORTS, KubeEdge
from tests.kubeedge.programs import DEFINITIONS
from tests.node.server import Server

if os.environ.get("TEST_NODE") != "1" or not {PROGRAMS, DEFINITIONS} <= os.environ.keys():
    pytest.exit("tests/kubeedge runs by: make kubeedge ENGINE=28", returncode=2)


@pytest.fixture(scope="session")
def engine() -> Iterator[DockerClient]:
    client = docker.from_env()
    yield client
    client.close()


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    with Server() as started:
        yield started


@pytest.fixture(scope="session")
def cluster(server: Server) -> Iterator[Cluster]:
    """An API server without a node. The logs of all are kept: the node's files end with the node."""
    with Cluster(os.environ[PROGRAMS], server.target) as running:
        yield running
    REPORTS.mkdir(parents=True, exist_ok=True)
    for log in (server.log, *running.logs.glob("*.log")):
        shutil.copy(log, REPORTS)


@pytest.fixture(scope="session")
def kubeedge(cluster: Cluster, server: Server) -> Iterator[KubeEdge]:
    """A node that has joined it."""
    with KubeEdge(cluster, Path(os.environ[DEFINITIONS])) as running:
        yield running
        running.stop_edge()
        command = ["crictl", f"--runtime-endpoint={server.target}", "rmp", "--all", "--force"]
        subprocess.run(command, check=True, capture_output=True, timeout=60)
