"""The part that runs in the node: the server, then the suite, which brings etcd, an API server and the kubelet."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tests.e2e_node import suite, units
from tests.kubernetes.ginkgo import Suite
from tests.kubernetes.interface import interface
from tests.node import cgroups
from tests.node.cache import CACHE, REPOSITORY
from tests.node.engine import Engine
from tests.node.inside import REGISTRY
from tests.node.mounts import bind
from tests.node.server import Server

FOLDER: Final = Path("/run/e2e-node")
TMP: Final = Path("/tmp")
# With it pods get user namespaces, if the engine is new enough.
USERS: Final = "dockershim-runc"
# What the suite's kubelet takes for the cgroups of the engine, and of all that is no part of Kubernetes.
ENGINE_CGROUP, SYSTEM_CGROUP = "docker-daemon", "system"
# The suite starts the kubelet by systemd where it finds these, and no systemd runs in a node.
OF_SYSTEMD: Final = ("systemd-run", "journalctl")
KUBELET: Final[Mapping[str, Any]] = {
    **suite.KUBELET,
    "cgroupDriver": "cgroupfs",
    "volumePluginDir": str(FOLDER / "plugins"),
    # A test node's machine may have any of these.
    "failCgroupV1": False,
    "failSwapOn": False,
    "evictionHard": {"memory.available": "0%"},
    "imageGCHighThresholdPercent": 100,
}


def main(arguments: Sequence[str]) -> int:
    """Write the JUnit report and all logs into the folder `report`; give the suite's exit code."""
    parser = argparse.ArgumentParser(allow_abbrev=False, epilog="What is not known here is for ginkgo.")
    parser.add_argument("suite", type=Path)
    parser.add_argument("report", type=Path)
    parser.add_argument("--ginkgo", type=Path, required=True, help="the program that runs the suite")
    parser.add_argument("--kubelet", type=Path, required=True)
    parser.add_argument("--images", type=Path, required=True, help="storage folder of a registry")
    parser.add_argument("--time-limit", type=float, required=True, help="seconds for all of it")
    parser.add_argument("--feature-gates", default="", help="of the kubelet")
    parser.add_argument("--units", action="store_true", help="let specs stop and start the kubelet as a unit")
    given, options = parser.parse_known_args(arguments)
    run = Suite(given.ginkgo, given.suite, given.report, given.time_limit)
    _prepare(given.images, given.kubelet)
    if given.units:
        (FOLDER / "bin").mkdir()
        units.install(FOLDER / "bin")
        os.environ["PATH"] = f"{FOLDER / 'bin'}:{os.environ['PATH']}"
    runtimes = {suite.RUNTIME: "runc", USERS: USERS}
    Engine().restart(*(f"--add-runtime={name}={shutil.which(program)}" for name, program in runtimes.items()))
    _move_to_cgroups()
    server = Server()
    server.start(f"--oci-runtime={USERS}")
    try:
        with interface():
            own = suite.arguments(server.target, f"{FOLDER}/kubelet.json", given.feature_gates)
            return run.run(FOLDER, options, own)
    finally:
        for log in (server.log, Engine().log):
            shutil.copy(log, given.report)
        server.stop()


def _prepare(images: Path, kubelet: Path) -> None:
    shutil.copytree(images, REGISTRY, dirs_exist_ok=True)
    FOLDER.mkdir()
    # The suite looks for it beside itself.
    (FOLDER / kubelet.name).symlink_to(kubelet)
    (FOLDER / "kubelet.json").write_text(json.dumps(KUBELET))
    for name in OF_SYSTEMD:
        # No file that can be run is no program in PATH.
        while found := shutil.which(name):
            bind(Path(os.devnull), Path(found))
    # Specs leave files in /tmp.
    if not any(path.is_relative_to(TMP) for path in (CACHE, REPOSITORY, Path(sys.executable))):
        (FOLDER / "tmp").mkdir()
        (FOLDER / "tmp").chmod(0o1777)
        bind(FOLDER / "tmp", TMP)


def _move_to_cgroups() -> None:
    for name, processes in ((ENGINE_CGROUP, _family(Engine().pid)), (SYSTEM_CGROUP, [os.getpid()])):
        cgroups.create(name)
        for process in processes:
            cgroups.enter(name, process)


def _family(pid: int | None) -> Iterator[int]:
    """A process with all its descendants."""
    if pid is not None:
        yield pid
        for children in Path(f"/proc/{pid}/task").glob("*/children"):
            for child in children.read_text().split():
                yield from _family(int(child))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
