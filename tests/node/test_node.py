"""The node seen from outside: what it lets out, and what it leaves when it ends in any way."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from tests.node import cgroups
from tests.node.cache import NODES, REPOSITORY
from tests.waiting import wait_until

pytestmark = pytest.mark.timeout(600)  # the first node of a machine downloads its packages

ALIVE = "docker run --detach --name pod registry.k8s.io/pause:3.9 >/dev/null 2>&1; echo ready; sleep 600"


def node(*command: str, engine: str = "20") -> list[str]:
    return [sys.executable, "-m", "tests.node", "--engine", engine, "--", *command]


def run(*command: str, engine: str = "20") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        node(*command, engine=engine), cwd=REPOSITORY, stdin=subprocess.DEVNULL, capture_output=True, text=True
    )


def traces(name: str) -> list[str]:
    """What is left of the node `name`: its folder, its cgroups, processes that know its folder."""
    folder = NODES / name
    places = [folder, *(hierarchy.path / name for hierarchy in cgroups.hierarchies())]
    left = [str(place) for place in places if place.exists()]
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes()
        except OSError:
            continue
        if os.fsencode(str(folder)) in command:
            left.append(f"{process.name}: {command.decode(errors='replace')}")
    return left


def nodes() -> set[str]:
    return {folder.name for folder in NODES.glob("dockershim-node-*")}


@pytest.mark.parametrize(
    ("script", "code"),
    [
        pytest.param("exit 0", 0, id="success"),
        pytest.param("exit 7", 7, id="the command's own code"),
        pytest.param("kill -9 $$", 137, id="the end by a signal, as a shell tells it"),
        pytest.param("exec no-such-program", 127, id="no such program"),
    ],
)
def test_exit_code_of_the_command(script: str, code: int) -> None:
    assert run("sh", "-c", script).returncode == code


@pytest.mark.parametrize(
    ("engine", "version"), [pytest.param("20", "20.10.", id="engine 20"), pytest.param("28", "28.", id="engine 28")]
)
def test_engine_runs_a_container_from_the_registry(engine: str, version: str) -> None:
    script = (
        "docker version -f {{.Server.Version}} && docker run --rm registry.k8s.io/e2e-test-images/busybox:1.29-2 id"
    )
    ran = run("sh", "-c", script, engine=engine)
    assert ran.stdout.startswith(version), ran.stderr
    assert "uid=0(root) gid=0(root)" in ran.stdout


@pytest.mark.parametrize("engine", ["20", "28"])
def test_the_engine_drops_what_no_plugin_accepts_on_every_machine(engine: str) -> None:
    """A machine on which an engine has run forwards packets already, and the kernel copies that to a new netns."""
    ran = run("iptables", "-S", "FORWARD", engine=engine)
    assert ran.stdout.startswith("-P FORWARD DROP\n"), (ran.stdout, ran.stderr)


def test_nothing_of_the_node_is_seen_outside() -> None:
    script = "touch /etc/mark /run/mark /var/lib/docker/mark /opt/cni/mark && hostname && ip -o link | wc -l"
    before = Path("/proc/self/mountinfo").read_bytes()
    ran = run("sh", "-ec", script)
    assert ran.stdout.split() == ["node", "2"], ran.stderr  # lo and docker0
    assert not [path for path in ("/etc/mark", "/run/mark", "/var/lib/docker/mark") if Path(path).exists()]
    assert Path("/proc/self/mountinfo").read_bytes() == before


@pytest.mark.parametrize(
    ("number", "code"),
    [
        pytest.param(signal.SIGTERM, 143, id="SIGTERM"),
        pytest.param(signal.SIGINT, 143, id="SIGINT without a terminal"),
        pytest.param(signal.SIGKILL, -9, id="SIGKILL of the parent"),
    ],
)
def test_everything_ends_with_the_parent(number: signal.Signals, code: int) -> None:
    before = nodes()
    with subprocess.Popen(
        node("sh", "-c", ALIVE), cwd=REPOSITORY, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "ready\n"
        (name,) = [new for new in nodes() - before if str(parent.pid) in _ancestors(new)]
        assert traces(name)
        parent.send_signal(number)
        assert parent.wait(30) == code
    wait_until(lambda: not traces(name), lambda: f"nothing is left of {name}; now: {traces(name)}")


def _ancestors(name: str) -> set[str]:
    """The process ids above the node's first process, to tell this test's node from others on the machine."""
    found: set[str] = set()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if name.encode() not in (process / "cmdline").read_bytes():
                continue
            pid = process.name
            while pid not in ("0", "1"):
                found.add(pid)
                pid = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]
        except OSError:
            continue
    return found


MACHINE_WITH_PLUGINS = """
import os, sys
from pathlib import Path
from tests.node.mounts import own_entries
own_entries(Path("/usr/lib"), Path(sys.argv[1]), ("cni",))
Path("/usr/lib/cni/bridge").touch()
os.execv(sys.argv[2], sys.argv[2:])
"""


def test_a_node_does_not_see_the_machines_plugins(tmp_path: Path) -> None:
    """As on a machine with Debian's containernetworking-plugins."""
    machine = ["unshare", "--mount", sys.executable, "-c", MACHINE_WITH_PLUGINS, str(tmp_path)]
    ran = subprocess.run(
        [*machine, *node("ls", "-A", "/usr/lib/cni")], cwd=REPOSITORY, stdin=subprocess.DEVNULL, capture_output=True
    )
    assert (ran.returncode, ran.stdout) == (0, b""), ran.stderr


def test_two_nodes_at_once_do_not_meet() -> None:
    script = "docker run --detach --name pod --publish 8080:80 registry.k8s.io/pause:3.9 && sleep 2 && docker ps -q"
    # A plugin of one node is not another's, nor is it left for the next.
    script = f"mkdir /opt/cni/bin/own && {script}"
    start = partial(subprocess.Popen, cwd=REPOSITORY, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    both = [start(node("sh", "-ec", script)) for _ in range(2)]
    for one in both:
        out, err = one.communicate(timeout=120)
        assert one.returncode == 0, err
        assert len(out.splitlines()) == 2, out
