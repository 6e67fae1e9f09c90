"""Fixtures of the tests that need a real engine. They run inside a test node, never on a machine's own engine."""

from __future__ import annotations

import fcntl
import gc
import itertools
import os
import warnings
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path

import docker
import pytest
from docker import DockerClient
from xdist import is_xdist_controller

import deploy.cri
from dockershim.api.cri.v1 import api_pb2 as api
from tests.cri_client import CRI
from tests.engine.noticed import SERVERS, NoticedEngine
from tests.node.engine import Engine
from tests.node.server import Server
from tests.node.state import Snapshot, capture

TIMEOUT = 120  # seconds for one test, the start of the session's server included

_HAS_FAILED = pytest.StashKey[bool]()
_numbers = itertools.count(2)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--operations", type=int, default=60, help="operations of the randomized test")
    parser.addoption("--operations-seed", type=int, default=1, help="which operations those are")
    parser.addoption("--stall", type=float, default=5.0, help="seconds for which a client of exec reads nothing")
    parser.addoption("--faults", type=int, default=16, help="cases of fault injection, 0 for all")
    parser.addoption("--faults-seed", type=int, help="which cases those are; another sample for each engine without it")
    parser.addoption("--faults-early", action="store_true", help="RunPodSandbox alone, with --early-network")
    parser.addoption("--soak", type=int, default=40, help="seconds of the soak")
    parser.addoption("--soak-seed", type=int, default=1, help="when what is killed in it")


def pytest_sessionstart(session: pytest.Session) -> None:
    """Refuse to run outside of a node; what shares the tests among nodes runs none itself."""
    if os.environ.get("TEST_NODE") != "1" and not is_xdist_controller(session):
        pytest.exit("tests/engine runs in a test node: make test-engine ENGINE=20 (or 28) FOCUS=name", returncode=2)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give each test a limit, and begin with the longest ones: in the end, no node waits for another's."""
    limits: dict[pytest.Item, float] = {}
    for item in items:
        own = item.get_closest_marker("timeout")
        if own is None:
            item.add_marker(pytest.mark.timeout(TIMEOUT))
        limits[item] = TIMEOUT if own is None else own.args[0]
    items.sort(key=lambda item: -limits[item])


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """While a test marked `alone` runs no other node of this checkout runs one. Waiting is not in a test's time."""
    with _opened(Path(__file__)) as entrance, _opened(Path(__file__).parent) as machine:
        # Who waits for the machine holds the entrance: a test that wants it alone is not overtaken for ever.
        fcntl.flock(entrance, fcntl.LOCK_EX)
        fcntl.flock(machine, fcntl.LOCK_EX if item.get_closest_marker("alone") else fcntl.LOCK_SH)
        fcntl.flock(entrance, fcntl.LOCK_UN)
        return (yield)


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show the end of the servers' and the engine's logs with each failure."""
    report = yield
    if report.failed:
        item.stash[_HAS_FAILED] = True
        report.sections.extend((f"log of {server.name}", server.log_end()) for server in SERVERS)
        report.sections.append(("log of dockerd", Engine().log_end(20)))
    return report


@pytest.fixture(scope="session")
def engine_api() -> Iterator[DockerClient]:
    """A client of the engine, to check the effects of the server's calls."""
    with closing(docker.from_env(timeout=60)) as client:
        yield client


@pytest.fixture(scope="session", autouse=True)
def nothing_left(engine_api: DockerClient) -> Iterator[None]:
    """Fail the session if anything of a pod is left on the node at its end that was not there at its start."""
    before = capture(engine_api)
    yield
    assert capture(engine_api).gained(before) == {}, "the tests left these behind"


@pytest.fixture(scope="session")
def servers() -> list[Server]:
    """The servers whose logs are shown with each failure."""
    return SERVERS


@pytest.fixture(scope="session")
def server(nothing_left: None) -> Iterator[Server]:
    """The server with all its defaults. A test that ends or changes it starts it again before it is done."""
    started = Server()
    SERVERS.append(started)
    started.start()
    yield started
    SERVERS.remove(started)
    assert started.stop() == 0, f"the server did not end well:\n{started.log_end()}"


@pytest.fixture(autouse=True)
def nothing_of_a_failure(request: pytest.FixtureRequest) -> Iterator[None]:
    """Remove the pods that a test which fails leaves on the session's server: the next ones would fail by them."""
    if "server" not in request.fixturenames:
        yield
        return
    server: Server = request.getfixturevalue("server")
    yield
    if request.node.stash.get(_HAS_FAILED, False):
        if not server.runs:
            server.start()
        with deploy.cri.CRI(server.target) as cri:
            for sandbox in cri.call("ListPodSandbox", api.ListPodSandboxRequest()).items:
                cri.call("StopPodSandbox", api.StopPodSandboxRequest(pod_sandbox_id=sandbox.id))
                cri.call("RemovePodSandbox", api.RemovePodSandboxRequest(pod_sandbox_id=sandbox.id))


@contextmanager
def _more_servers() -> Iterator[Callable[..., Server]]:
    """`start(*flags)` for the length of a block."""
    more: list[Server] = []

    def start(*flags: str) -> Server:
        started = Server(name=f"dockershim-{next(_numbers)}", flags=flags)
        more.append(started)
        SERVERS.append(started)
        started.start()
        return started

    try:
        yield start
    finally:
        for started in more:
            started.kill()
            SERVERS.remove(started)


@pytest.fixture
def start_server() -> Iterator[Callable[..., Server]]:
    """`start_server(*flags)`: one more server, with a socket and folders of its own, ended with the test."""
    with _more_servers() as start:
        yield start


@pytest.fixture(scope="module")
def start_lasting_server(nothing_left: None) -> Iterator[Callable[..., Server]]:
    """The same for all tests of a module, which leave such a server as it was."""
    with _more_servers() as start:
        yield start


@pytest.fixture
async def cri(server: Server) -> AsyncIterator[CRI]:
    """A CRI connection to the session's server."""
    async with CRI(server.target) as connection:
        yield connection


@pytest.fixture
def engine() -> Iterator[Engine]:
    """The node's engine, for tests that stop, kill or restart it; it runs again for the next test."""
    handle = NoticedEngine()
    yield handle
    if handle.pid is None:
        handle.start()
    # Docker's client leaves the sockets that it could not connect to the garbage collector, which must not come to
    # them in a later test: they would fail that.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@pytest.fixture
def snapshot(engine_api: DockerClient) -> Callable[[], Snapshot]:
    """`snapshot()`: everything of pods on the node now. Compare two with `after.gained(before) == {}`."""
    return partial(capture, engine_api)
