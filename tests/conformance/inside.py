"""The part that runs in the node: the server, then critest against it, if asked while the engine is restarted."""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import subprocess
import sys
import threading
import time
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.node.engine import Engine
from tests.node.server import DropIn, Server
from tests.waiting import wait_until

JUNIT = "junit.xml"
RETRYING = Path("/run/retrying.sock")
RUNTIME = "dockershim-runc"
TIME_LIMIT = 1200  # seconds for the whole suite, which takes about two minutes


def main(arguments: Sequence[str]) -> int:
    """Write critest's JUnit report, its output and the server's log into the folder `report`; give its exit code."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("critest", type=Path)
    parser.add_argument("report", type=Path)
    parser.add_argument("--ginkgo", type=Path, help="the program that runs critest in several processes")
    parser.add_argument("--processes", type=int)
    parser.add_argument("--restart-every", type=float, default=0.0, help="seconds from one engine restart to the next")
    parser.add_argument("--cri-dockerd", action="store_true", help="start the program under that name")
    given, more = parser.parse_known_args(arguments)
    report: Path = given.report
    # Pods get user namespaces, and their network beside their start, where the engine is new enough for it.
    Engine().restart(_add_runtime())
    server: Server
    if given.cri_dockerd:
        # As hack/run-cri-dockerd-critest.sh of cri-tools does, whose skips are left out.
        server = DropIn()
        os.environ["DOCKERSHIM_OCI_RUNTIME"] = RUNTIME
        server.start("--network-plugin=", f"--container-runtime-endpoint=unix:///var{server.socket}")
    else:
        server = Server()
        server.start(f"--oci-runtime={RUNTIME}", "--early-network")
    try:
        with restarting(server, given.restart_every) as target, (report / "critest.log").open("wb") as log:
            # A fixed order: a failure that depends on what ran before can be seen again.
            options = ["--ginkgo.seed=1", "--ginkgo.no-color", "--ginkgo.v", *more]
            if given.restart_every:
                # Done once more, as a kubelet or a user would, is what no repeated call helps: a stream that is cut, or
                # cannot be opened, while the engine is away; and a container that the engine was starting when it was
                # told to end: it is ended although the start was answered well (seen with Docker 20.10).
                options.append("--ginkgo.flake-attempts=2")
            endpoint = f"--runtime-endpoint={target}"
            command = [str(given.critest), endpoint, f"--ginkgo.junit-report={report / JUNIT}", *options]
            if given.ginkgo:
                shared = [f"--procs={given.processes}", f"--output-dir={report}", f"--junit-report={JUNIT}"]
                its = [option.replace("--ginkgo.", "--") for option in options if option.startswith("--ginkgo.")]
                critests = [option for option in options if not option.startswith("--ginkgo.")]
                suite = _as_suite(given.critest, report)
                command = [str(given.ginkgo), *shared, *its, suite, "--", endpoint, *critests]
            ended = subprocess.run(command, stdout=log, stderr=log, timeout=TIME_LIMIT).returncode
        if given.restart_every:
            _tell_repeated(report / JUNIT)
        return ended
    finally:
        (report / "dockershim.server.log").write_bytes(server.log.read_bytes())
        (report / "dockerd.log").write_bytes(Path("/var/log/dockerd.log").read_bytes())
        server.stop()


def _add_runtime() -> str:
    """The engine's flag for the node's dockershim-runc."""
    return f"--add-runtime={RUNTIME}={shutil.which(RUNTIME)}"


@contextlib.contextmanager
def restarting(server: Server, every: float) -> Iterator[str]:
    """Restart the engine again and again, if ``every`` is not 0; gives where critest finds the server meanwhile.

    Containers live on (live-restore): what critest started has to be there when it looks at it.
    """
    if not every:
        yield server.target
        return
    engine = Engine()
    engine.restart("--live-restore", _add_runtime())
    over = threading.Event()
    restarts: list[float] = []

    def restart() -> None:
        while not over.wait(every):
            begun = time.monotonic()
            engine.restart("--live-restore", _add_runtime())
            restarts.append(time.monotonic() - begun)

    command = [sys.executable, "-m", "tests.conformance.retrying", str(RETRYING), server.target]
    retrying = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    thread = threading.Thread(target=restart)
    thread.start()
    try:
        wait_until(RETRYING.exists)
        yield f"unix://{RETRYING}"
    finally:
        over.set()
        thread.join()
        repeated, _ = retrying.communicate()
        sys.stdout.write(
            f"the engine was restarted {len(restarts)} times, away for {max(restarts, default=0):.1f} s at most;"
            f" {int(repeated)} calls were repeated\n"
        )


def _tell_repeated(report: Path) -> None:
    """Name the specs that passed only when they were run once more, which the report tells in its details."""
    for case in ET.parse(report).iter("testcase"):
        if case.get("status") == "passed" and "Attempt #1 Failed" in "".join(case.itertext()):
            sys.stdout.write(f"run once more: {case.get('name')}\n")


def _as_suite(critest: Path, folder: Path) -> str:
    """ginkgo tells a compiled suite by its name."""
    suite = folder / f"{critest.name}.test"
    suite.symlink_to(critest)
    return str(suite)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
