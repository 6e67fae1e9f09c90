"""`python -m tests.node [--engine 20|28|29|29-overlay2] [-- command…]`: run a command (or a shell) in a test node."""

from __future__ import annotations

import argparse
import ctypes
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from tests import nri
from tests.conformance import tools as cri_tools
from tests.node import cgroups
from tests.node.cache import NODES, REPOSITORY, hold, locked
from tests.node.inside import Orders, exit_code
from tests.node.packages import SetupError, executable
from tests.node.supplies import BUILT, ENGINES, provide, provide_runc

PR_SET_PDEATHSIG = 1
PREFIX = "dockershim-node-"  # of a node's folder and of its cgroup
GRACE = 10.0  # seconds that the command has to end after SIGTERM

_libc = ctypes.CDLL(None, use_errno=True)


class Terminated(Exception):
    """SIGTERM has come."""


def main(arguments: Sequence[str]) -> int:
    """Start a node, run the command in it, give its exit code; SystemExit says why a node cannot be started."""
    parser = argparse.ArgumentParser(prog="python -m tests.node", description=__doc__)
    parser.add_argument("--engine", choices=sorted(ENGINES), default="20", help="version of the Docker Engine")
    parser.add_argument("command", nargs="*", help="what to run in the node; a shell if left out")
    given = parser.parse_args(arguments)
    command = tuple(given.command) or (sys.executable, "-m", "tests.node.shell")
    try:
        # A test may start another engine than the node's own. Only for its own kind Go builds one.
        known = [engine for engine in ENGINES if engine not in BUILT or given.engine in BUILT]
        supplies = {engine: provide(engine) for engine in known}
        own = supplies[given.engine]
        runc = provide_runc()
        programs = [Path(sys.executable).parent, *own.path, cri_tools.provide(), nri.provide()]
        unshare = executable("unshare")
    except SetupError as error:
        sys.exit(f"node: {error}")
    orders = Orders(
        engine=given.engine,
        path=":".join(str(path) for path in programs),
        engines={engine: ":".join(str(path) for path in one.path) for engine, one in supplies.items()},
        cni=str(own.base / "usr/lib/cni"),
        registry=str(own.registry),
        runc=str(runc),
        command=command,
    )
    # Two processes: the keeper outlives a killed parent for as long as it takes to remove what the node leaves.
    parent = os.getpid()
    keeper = os.fork()
    if keeper == 0:
        os._exit(_keep(parent, unshare, orders))
    return _wait_for(keeper)


def _wait_for(keeper: int) -> int:
    signal.signal(signal.SIGTERM, lambda *_: os.kill(keeper, signal.SIGTERM))
    # A terminal sends Ctrl-C to the command as well, which decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN if sys.stdin.isatty() else lambda *_: os.kill(keeper, signal.SIGTERM))
    return exit_code(os.waitpid(keeper, 0)[1])


def _keep(parent: int, unshare: Path, orders: Orders) -> int:
    """Start the node, wait for its end, remove its folder and its cgroups."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _raise_terminated)
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    try:
        with _node_folder() as folder:
            if os.getppid() != parent:
                raise Terminated
            return _run(unshare, orders, folder)
    except Terminated:
        return 128 + signal.SIGTERM


def _run(unshare: Path, orders: Orders, folder: Path) -> int:
    def before_exec() -> None:
        _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        cgroups.enter(folder.name)

    own = ("--mount", "--net", "--uts", "--ipc", "--pid", "--cgroup", "--fork", "--mount-proc", "--kill-child")
    first = (sys.executable, "-m", "tests.node.inside", str(folder), orders.encode())
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    node = subprocess.Popen([unshare, *own, *first], env=environment, preexec_fn=before_exec)
    try:
        return node.wait()
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        _end(node)


def _end(node: subprocess.Popen[bytes]) -> None:
    if node.poll() is not None:
        return
    # unshare does not pass signals on; the node's first process is its only child.
    for child in Path(f"/proc/{node.pid}/task/{node.pid}/children").read_text().split():
        os.kill(int(child), signal.SIGTERM)
    try:
        node.wait(GRACE)
    except subprocess.TimeoutExpired:
        node.kill()
        node.wait()


@contextmanager
def _node_folder() -> Iterator[Path]:
    """A folder and a cgroup of the same name for one node; both are gone at the end, whatever happened."""
    with locked("nodes", NODES):
        _sweep()
        folder = Path(tempfile.mkdtemp(dir=NODES, prefix=PREFIX))
        lock = hold(folder)
    try:
        cgroups.create(folder.name)
        yield folder
    finally:
        _remove(folder)
        os.close(lock)


def _sweep() -> None:
    """Remove what nodes left whose keeper was killed: nobody holds the lock of their folders."""
    for folder in NODES.glob(f"{PREFIX}*"):
        try:
            lock = hold(folder)
        except BlockingIOError:
            continue
        _remove(folder)
        os.close(lock)


def _remove(folder: Path) -> None:
    cgroups.remove(folder.name)
    shutil.rmtree(folder, ignore_errors=True)


def _raise_terminated(number: int, frame: FrameType | None) -> None:
    raise Terminated


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
