"""A node is drained, gets another server and another engine, and comes back."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.kubernetes.workloads import deploy
from tests.node.cache import REPOSITORY
from tests.two_nodes import disk
from tests.two_nodes.cluster import CONTROL, PATIENCE, WORKER, TwoNodes
from tests.two_nodes.left import left
from tests.vm import image
from tests.vm.guest import Guest

NEXT = "99.0.0"
PIP = "/opt/dockershim/bin/pip"


def next_wheel(folder: Path) -> Path:
    """The server of this checkout, with a later version."""
    sources = folder / "sources"
    for name in (*image.SERVER, "README.md", "LICENSE"):
        part = REPOSITORY / name
        if part.is_dir():
            shutil.copytree(part, sources / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(part, sources)
    init = sources / "dockershim/__init__.py"
    lines = init.read_text().splitlines()
    init.write_text("\n".join(f'__version__ = "{NEXT}"' if line.startswith("__version__") else line for line in lines))
    return image.wheel(sources, folder / "wheels")


def containers_on(made: TwoNodes, node: str) -> dict[str, int]:
    """How often each container of a node was started again, by its id."""
    pods = made.pods("--all-namespaces", f"--field-selector=spec.nodeName={node}")
    statuses = [status for pod in pods for status in pod["status"].get("containerStatuses", [])]
    return {status["containerID"]: status["restartCount"] for status in statuses}


def owners(made: TwoNodes, node: str) -> set[str]:
    """The kinds of what the pods of a node belong to."""
    pods = made.pods("--all-namespaces", f"--field-selector=spec.nodeName={node}")
    return {owner["kind"] for pod in pods for owner in pod["metadata"].get("ownerReferences", [])}


def on(node: str) -> dict[str, object]:
    """What puts pods on a node."""
    return {
        "nodeSelector": {"kubernetes.io/hostname": node},
        "tolerations": [{"key": "node-role.kubernetes.io/control-plane", "operator": "Exists"}],
    }


def test_a_drained_node_gets_another_server_and_engine_and_comes_back(made: TwoNodes, tmp_path: Path) -> None:
    steady = deploy(made, "steady", 1, spec=on(CONTROL), seconds=PATIENCE)
    moved = deploy(made, "moved", 1, spec=on(WORKER), seconds=PATIENCE)
    worker = made.worker

    made.timed(
        "drain",
        lambda: made.kubectl("drain", WORKER, "--ignore-daemonsets", f"--timeout={PATIENCE:.0f}s"),
    )
    assert owners(made, WORKER) == {"DaemonSet"}
    before = containers_on(made, CONTROL)

    made.timed("upgrade of the server", lambda: upgrade_server(worker, tmp_path))
    made.timed(f"upgrade of the engine, {engine_version(worker)}", lambda: upgrade_engine(worker))
    assert worker.run("/opt/dockershim/bin/dockershim", "--version").split()[-1] == NEXT
    assert engine_version(worker).startswith(disk.NEXT_ENGINE)

    made.kubectl("uncordon", WORKER)
    made.timed("the node's return", made.wait_ready)
    made.timed("its pods", lambda: made.rolled_out("deployment/moved", PATIENCE))

    def reach_each_other() -> bool:
        return moved.answers(steady, 1) == steady.pods() and steady.answers(moved, 1) == moved.pods()

    # The kube-proxy that was started again has to list them first, and a busy guest misses readiness probes of CoreDNS.
    made.timed("its Services", lambda: made.wait(reach_each_other, PATIENCE, "answers of Services between both nodes"))
    assert before.items() <= containers_on(made, CONTROL).items()
    made.kubectl("delete", "deployment,service", "steady", "moved", "--ignore-not-found", "--cascade=foreground")
    made.wait(lambda: not left(made, worker).odd(), PATIENCE, "the end of what was on the node before")


def upgrade_server(guest: Guest, folder: Path) -> None:
    """As README says for an installation by hand."""
    wheel = next_wheel(folder)
    guest.copy(wheel, f"/tmp/{wheel.name}")
    guest.run(PIP, "-q", "install", "--no-index", "--no-deps", f"/tmp/{wheel.name}", timeout=300)
    guest.run("systemctl", "restart", "dockershim", timeout=300)


def upgrade_engine(guest: Guest) -> None:
    """As a package does: the programs are replaced while the old ones run, then the engine is restarted."""
    for path, program in image.programs_of(disk.NEXT_ENGINE).items():
        guest.copy(program, f"/{path}.new")
        guest.sh(f"chmod 755 /{path}.new && mv /{path}.new /{path}")
    guest.run("systemctl", "restart", "docker", timeout=PATIENCE)


def engine_version(guest: Guest) -> str:
    return guest.run("docker", "version", "--format={{.Server.Version}}", timeout=PATIENCE)
