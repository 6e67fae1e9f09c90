"""The kubelet of the tests: one for the session, in a test node."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.kubelets.kubelet import LOG, MINOR, PROGRAM, REPORTS, Kubelet
from tests.kubelets.versions import settings
from tests.node.server import Server

if os.environ.get("TEST_NODE") != "1" or not {PROGRAM, MINOR} <= os.environ.keys():
    pytest.exit("tests/kubelets runs by: make kubelets FOCUS=1.37", returncode=2)


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    started = Server()
    with _kept(started.log, "server"), started:
        yield started


@pytest.fixture(scope="session")
def kubelet(server: Server) -> Iterator[Kubelet]:
    program, minor = Path(os.environ[PROGRAM]), os.environ[MINOR]
    with _kept(LOG, "kubelet"), Kubelet(program, server.target, settings(minor)) as running:
        yield running


@contextmanager
def _kept(log: Path, name: str) -> Iterator[None]:
    """Copy a log to the reports at the end: the node's files end with the node."""
    try:
        yield
    finally:
        shutil.copy(log, REPORTS / f"{os.environ[MINOR]}-{name}.log")
