"""dockershim-runc as the engine starts it, with a script for runc. What it does to mounts is in tests/engine."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.runc import MACHINES, build, program

NAME = "io.dockershim.user-namespace"
NETWORK = "io.dockershim.network-namespace"
MEMBERS = "io.dockershim.config"
RUNC = """\
#!/bin/sh
printf '%s\\n' "$@" >words
echo "$VARIABLE"
exit 7
"""
EVERY = list(MACHINES)


@pytest.mark.parametrize("architecture", EVERY)
def test_the_program_is_what_its_source_says(architecture: str, tmp_path: Path) -> None:
    build(architecture, tmp_path / "built")
    assert (tmp_path / "built").read_bytes() == program(architecture).read_bytes()


def run(architecture: str, folder: Path, *words: str, runc: bool = True) -> subprocess.CompletedProcess[str]:
    """Run the program in ``folder``, with the script as runc in the folder ``bin``, or none."""
    own = folder / "bin/runc"
    own.parent.mkdir(exist_ok=True)
    if runc:
        own.write_text(RUNC)
        own.chmod(0o755)
    machine = MACHINES[architecture]
    command = [] if platform.machine() == machine else [f"/usr/bin/qemu-{machine}-static"]
    return subprocess.run(
        [*command, program(architecture), *words],
        cwd=folder,
        env={"PATH": f"relative::/nowhere:{own.parent}", "VARIABLE": "kept"},
        capture_output=True,
        text=True,
        timeout=15,
    )


@pytest.mark.parametrize(
    "words",
    [
        ["--root", "/r", "--log", "/nowhere/log", "state", "id"],
        ["features"],
        [],
        ["--log", "/nowhere/log.json", "exec", "--process", "/x y", "id"],
        ["exec", "id"],
        ["delete", "--force", "", 'a "b"\n'],
    ],
)
@pytest.mark.parametrize("architecture", EVERY)
def test_it_is_runc_for_everything_else(architecture: str, words: list[str], tmp_path: Path) -> None:
    done = run(architecture, tmp_path, *words)
    assert (done.returncode, done.stdout, done.stderr) == (7, "kept\n", "")
    assert (tmp_path / "words").read_text() == "\n".join(words) + "\n"


@pytest.mark.parametrize("place", [["--bundle", "{}"], ["--bundle={}"], ["-b", "{}"], []])
@pytest.mark.parametrize("architecture", EVERY)
def test_a_container_that_asks_for_nothing_is_left_alone(architecture: str, place: list[str], tmp_path: Path) -> None:
    bundle = tmp_path / "bundle" if place else tmp_path
    bundle.mkdir(exist_ok=True)
    text = json.dumps({"annotations": {"other": "1"}, "process": {"args": ["x" * 100_000]}})
    (bundle / "config.json").write_text(text)
    done = run(architecture, tmp_path, "--log", "log", "create", *(word.format(bundle) for word in place), "id")
    assert (done.returncode, done.stderr) == (7, "")
    assert (bundle / "config.json").read_text() == text
    assert not (tmp_path / "log").exists()


def asking(**changes: object) -> dict[str, object]:
    return {
        "annotations": {NAME: "200000 200000 65536"},
        "root": {"path": "/nowhere/root"},
        "linux": {"namespaces": [{"type": "network"}]},
    } | changes


def joining(path: str) -> dict[str, object]:
    return asking(linux={"namespaces": [{"type": "network", "path": path}]})


def early(prefix: str) -> dict[str, object]:
    """A container that is to join the network namespace at ``prefix`` and its id."""
    return asking(annotations={NETWORK: prefix})


ID = "0123456789abcdef" * 4


@pytest.mark.parametrize("architecture", EVERY)
def test_its_version_is_asked(architecture: str, tmp_path: Path) -> None:
    done = run(architecture, tmp_path, "--dockershim-features", runc=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "network namespaces\nmembers\nunified\n", "")


def test_a_network_namespace_that_is_there_is_joined(tmp_path: Path) -> None:
    """Only on this machine's architecture: qemu passes no ioctl that it does not know."""
    architecture = next(name for name, machine in MACHINES.items() if machine == platform.machine())
    path = tmp_path / f"pin-{ID}"
    path.symlink_to("/proc/self/ns/net")
    (tmp_path / "config.json").write_text(json.dumps(early(f"{tmp_path}/pin-")))
    done = run(architecture, tmp_path, "create", "--bundle", ".", ID)
    assert (done.returncode, done.stderr) == (7, "")
    made = json.loads((tmp_path / "config.json").read_text())
    assert made == early(f"{tmp_path}/pin-") | {"linux": {"namespaces": [{"type": "network", "path": str(path)}]}}


@pytest.mark.parametrize("architecture", EVERY)
def test_members_are_put_into_the_configuration(architecture: str, tmp_path: Path) -> None:
    asked = {"annotations": {MEMBERS: "hooks " + b'{"poststop":[]}'.hex()}, "process": {"args": ["x"]}}
    (tmp_path / "config.json").write_text(json.dumps(asked))
    done = run(architecture, tmp_path, "create", ID)
    assert (done.returncode, done.stderr) == (7, "")
    assert json.loads((tmp_path / "config.json").read_text()) == asked | {"hooks": {"poststop": []}}


@pytest.mark.parametrize(
    ("command", "config", "words"),
    [
        pytest.param(
            "create id", {"annotations": {MEMBERS: "mounts 7b7d"}}, "unknown name", id="a member of another name"
        ),
        pytest.param(
            "restore id", {"annotations": {MEMBERS: "hooks 7b7d"}}, "cannot be restored", id="a checkpoint with hooks"
        ),
        pytest.param("create id", early("/nowhere/"), "has no id", id="a container without an id"),
        pytest.param(f"create {ID}", early("/nowhere/"), "cannot open /nowhere/0123", id="no network namespace"),
        pytest.param(f"create {ID}", early("/proc/self/ns/../../self/ns/pid"), "cannot open", id="no id at the end"),
        pytest.param("restore id", early("/nowhere/"), "cannot be restored", id="a checkpoint with a network"),
        pytest.param("create id", None, "cannot open", id="no config.json"),
        pytest.param("create id", "", "not a JSON object", id="an empty config.json"),
        pytest.param("run id", "[]", "not a JSON object", id="an array"),
        pytest.param("restore id", asking(), "cannot be restored", id="a checkpoint"),
        pytest.param("create id", asking(annotations={NAME: "no"}), "annotation", id="words of an annotation"),
        pytest.param("create id", asking(root={"path": "root"}), "absolute", id="a relative root"),
        pytest.param("create id", asking(root={"path": "/a\\b"}), "escaped", id="a root with an escape"),
        pytest.param("create id", asking(root={"path": "/" + "a" * 5000}), "absolute", id="a long root"),
        pytest.param("create id", joining("/var/run/netns/x"), "that of a process", id="a namespace of no process"),
        pytest.param("create id", joining("/proc/1/../2/ns/net"), "that of a process", id="a path through others"),
        pytest.param("create id", joining("/proc//ns/net"), "that of a process", id="a process without a number"),
        pytest.param("create id", joining("/proc/self/ns/net"), "that of a process", id="a process by name"),
        pytest.param("create id", joining("/proc/1/ns/net"), "has other ids", id="a process with other ids"),
        pytest.param("create id", joining("/proc/4194305/ns/net"), "cannot open", id="a process that is gone"),
    ],
)
@pytest.mark.parametrize("architecture", EVERY)
def test_a_refusal_is_told_where_the_engine_looks(
    architecture: str, command: str, config: object, words: str, tmp_path: Path
) -> None:
    if config is not None:
        (tmp_path / "config.json").write_text(config if isinstance(config, str) else json.dumps(config))
    done = run(architecture, tmp_path, "--log", "log", *command.split())
    assert (done.returncode, done.stdout) == (1, "")
    assert words in done.stderr
    [line] = (tmp_path / "log").read_text().splitlines()
    told = json.loads(line)
    assert told["level"] == "error"
    assert words in told["msg"]
    assert not (tmp_path / "words").exists()


@pytest.mark.parametrize("source", ["/proc/self/ns/pid", "/dev/null"])
@pytest.mark.parametrize("architecture", EVERY)
def test_what_is_no_network_namespace_is_refused(architecture: str, source: str, tmp_path: Path) -> None:
    (tmp_path / f"pin-{ID}").symlink_to(source)
    (tmp_path / "config.json").write_text(json.dumps(early(f"{tmp_path}/pin-")))
    done = run(architecture, tmp_path, "create", ID)
    assert done.returncode == 1
    assert f"is not a network namespace: {tmp_path}/pin-{ID}" in done.stderr


@pytest.mark.parametrize("architecture", EVERY)
def test_without_runc_it_says_so(architecture: str, tmp_path: Path) -> None:
    done = run(architecture, tmp_path, "state", "id", runc=False)
    assert done.returncode == 1
    assert "cannot run runc, looked for in PATH: errno 2" in done.stderr


def test_it_does_not_start_itself(tmp_path: Path) -> None:
    """An operator may give it runc's name, before runc in PATH."""
    own = tmp_path / "own/runc"
    own.parent.mkdir()
    architecture = next(name for name, machine in MACHINES.items() if machine == platform.machine())
    own.write_bytes(program(architecture).read_bytes())
    own.chmod(0o755)
    os.link(own, tmp_path / "runc")
    done = subprocess.run(
        [own, "list"], env={"PATH": f"{own.parent}:{tmp_path}"}, capture_output=True, text=True, timeout=15
    )
    assert (done.returncode, done.stderr) == (1, "dockershim-runc: cannot run runc, looked for in PATH: errno 2\n")


#: In a mount namespace of its own: mounts whose names tenants chose, and behind them an overlay, from which a container
#: is made. An option of it is one that the program refuses, so that it says which row it has read.
AMONG_HOSTILE_MOUNTS = """
import subprocess, sys
from pathlib import Path
from tests.hostile_mounts import bind, forged

folder, program = Path(sys.argv[1]), sys.argv[2]
subprocess.run(["mount", "-t", "tmpfs", "own", "/run"], check=True)
root, lower = folder / "bundle/rootfs", folder / "the layers"
bind(folder / "hostile")
subprocess.run(["mount", "-t", "overlay", "-o", f"lowerdir={lower}/1:{lower}/2", "overlay", root], check=True)
bind(folder / "later", [forged(f"1 1 0:1 / {root} rw - tmpfs tmpfs rw")])
sys.exit(subprocess.run([program, "create", "--bundle", folder / "bundle", "id"]).returncode)
"""


def test_names_of_tenants_do_not_hide_the_root_file_system(tmp_path: Path) -> None:
    """Only on this machine's architecture: qemu makes no namespaces."""
    architecture = next(name for name, machine in MACHINES.items() if machine == platform.machine())
    for name in ("bundle/rootfs", "the layers/1", "the layers/2"):
        (tmp_path / name).mkdir(parents=True)
    asked = asking(root={"path": f"{tmp_path}/bundle/rootfs"})
    (tmp_path / "bundle/config.json").write_text(json.dumps(asked))
    words = [sys.executable, "-c", AMONG_HOSTILE_MOUNTS, str(tmp_path), str(program(architecture))]
    done = subprocess.run(["unshare", "--mount", *words], capture_output=True, text=True, cwd=Path(__file__).parents[3])
    assert f"has an escaped character: lowerdir={tmp_path}/the\\040layers/1" in done.stderr
    assert done.returncode == 1
