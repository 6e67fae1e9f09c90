"""The pause program, run as it runs in a pod, and the image around it.

Needs the assemblers of both architectures and qemu's user emulation: Debian's binutils, binutils-aarch64-linux-gnu
(or binutils-x86-64-linux-gnu) and qemu-user-static.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import platform
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import dockershim
from dockershim.cri.infra_image import BUILTIN_INFRA_IMAGE, docker_archive
from dockershim.errors import FailedPrecondition

INFRA = Path(dockershim.__file__).parent / "infra"

BOTH = [pytest.param("amd64", "x86_64", id="amd64"), pytest.param("arm64", "aarch64", id="arm64")]


@pytest.mark.parametrize(("architecture", "machine"), BOTH)
def test_the_program_is_what_its_source_says(architecture: str, machine: str, tmp_path: Path) -> None:
    source, built = INFRA / f"pause-{architecture}.S", tmp_path / "pause"
    subprocess.run([f"{machine}-linux-gnu-as", "-o", tmp_path / "pause.o", source], check=True)
    subprocess.run([f"{machine}-linux-gnu-objcopy", "-O", "binary", tmp_path / "pause.o", built], check=True)
    assert built.read_bytes() == (INFRA / f"pause-{architecture}").read_bytes()


def command(architecture: str, machine: str, folder: Path) -> list[str]:
    program = folder / "pause"
    program.write_bytes((INFRA / f"pause-{architecture}").read_bytes())
    program.chmod(0o755)
    return [str(program)] if platform.machine() == machine else [f"qemu-{machine}-static", str(program)]


@contextmanager
def running_as_pid_1(command: list[str]) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """The unshare process around the program, which ends with its exit code, and the program's pid in our namespace."""
    user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    with subprocess.Popen(["unshare", *user, "--pid", "--fork", "--kill-child", *command]) as parent:
        try:
            pid = wait_for_child(parent.pid)
            wait_until_waiting(pid)
            yield parent, pid
        finally:
            parent.kill()


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def wait_for_child(pid: int) -> int:
    while not (found := children(pid)):
        time.sleep(0.001)
    return found[0]


def wait_until_waiting(pid: int) -> None:
    """Wait until SIGCHLD is ignored: the program does this last before it waits, after it has blocked other signals."""
    while not field(pid, "SigIgn") & 1 << (signal.SIGCHLD - 1):
        time.sleep(0.001)


def field(pid: int, name: str) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1], 16)
    raise AssertionError(name)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize(("architecture", "machine"), BOTH)
def test_a_stop_signal_ends_it_at_once(architecture: str, machine: str, number: int, tmp_path: Path) -> None:
    with running_as_pid_1(command(architecture, machine, tmp_path)) as (parent, pid):
        os.kill(pid, number)
        assert parent.wait(timeout=5) == 0


#: In a process of its own, as gRPC's threads would take the signal in a fork of this one.
SIGNALED_BEFORE = """
import os, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
os.kill(os.getpid(), signal.SIGTERM)
os.execvp(sys.argv[1], sys.argv[1:])
"""


def test_a_signal_that_came_before_it_waited_ends_it(tmp_path: Path) -> None:
    """The signal is blocked by the parent and pending when the program begins, as if it came before the wait."""
    program = command("amd64", "x86_64", tmp_path)
    done = subprocess.run([sys.executable, "-I", "-c", SIGNALED_BEFORE, *program], timeout=10, check=False)
    assert done.returncode == 0


@pytest.mark.parametrize(("architecture", "machine"), BOTH)
def test_it_goes_on_waiting_after_stop_and_continue(architecture: str, machine: str, tmp_path: Path) -> None:
    with running_as_pid_1(command(architecture, machine, tmp_path)) as (parent, pid):
        os.kill(pid, signal.SIGSTOP)
        os.kill(pid, signal.SIGCONT)
        with pytest.raises(subprocess.TimeoutExpired):
            parent.wait(timeout=0.2)
        os.kill(pid, signal.SIGTERM)
        assert parent.wait(timeout=5) == 0


#: In a process of its own: gRPC, which another test may have loaded into this one, does not survive a fork into another
#: pid namespace.
ORPHAN = """
import ctypes, os, sys, time
pid, dies_first, seconds = sys.argv[1], sys.argv[2] == "True", float(sys.argv[3])
if ctypes.CDLL(None).setns(os.open(f"/proc/{pid}/ns/pid", os.O_RDONLY), 0x20000000) != 0:
    sys.exit(2)
parent = os.fork()
if parent == 0:
    if os.fork() == 0:
        time.sleep(0 if dies_first else seconds)
        os._exit(0)
    time.sleep(0.1 if dies_first else 0)
    os._exit(0)
os.waitpid(parent, 0)
"""


def leave_an_orphan(pid: int, dies_first: bool, seconds: float = 1.0) -> None:
    """Enter the pid namespace, and leave an orphan in it: alive for so many seconds, or already a zombie."""
    subprocess.run([sys.executable, "-I", "-c", ORPHAN, str(pid), str(dies_first), str(seconds)], check=True)


@pytest.mark.parametrize("dies_first", [pytest.param(False, id="orphan"), pytest.param(True, id="zombie-orphan")])
@pytest.mark.parametrize(("architecture", "machine"), BOTH)
def test_orphans_of_the_pod_are_reaped(architecture: str, machine: str, dies_first: bool, tmp_path: Path) -> None:
    with running_as_pid_1(command(architecture, machine, tmp_path)) as (parent, pid):
        for _ in range(3):
            leave_an_orphan(pid, dies_first)
        if not dies_first:
            assert len(children(pid)) > 0
        deadline = time.monotonic() + 15
        while children(pid) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert children(pid) == []
        assert parent.poll() is None


def test_it_never_wakes_up_while_it_waits(tmp_path: Path) -> None:
    with running_as_pid_1(command("amd64", "x86_64", tmp_path)) as (_, pid):
        time.sleep(0.05)
        before = switches(pid)
        leave_an_orphan(pid, dies_first=False, seconds=0.2)
        time.sleep(0.4)
        assert switches(pid) == before


def switches(pid: int) -> list[str]:
    return [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if "ctxt_switches" in line]


# -- the image


def members(archive: bytes) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        return {member.name: file.read() for member in tar if (file := tar.extractfile(member)) is not None}


@pytest.mark.parametrize(
    ("asked", "architecture"),
    [
        pytest.param("amd64", "amd64", id="go-name"),
        pytest.param("x86_64", "amd64", id="uname"),
        pytest.param("arm64", "arm64", id="arm-go-name"),
        pytest.param("aarch64", "arm64", id="arm-uname"),
    ],
)
def test_the_archive_holds_one_whole_image(asked: str, architecture: str) -> None:
    files = members(docker_archive(asked))
    (image,) = json.loads(files["manifest.json"])
    assert image["RepoTags"] == [BUILTIN_INFRA_IMAGE]
    config = files[image["Config"]]
    assert image["Config"] == f"{hashlib.sha256(config).hexdigest()}.json"
    (layer,) = (files[name] for name in image["Layers"])
    described = json.loads(config)
    assert described["architecture"] == architecture
    assert described["rootfs"]["diff_ids"] == [f"sha256:{hashlib.sha256(layer).hexdigest()}"]
    assert described["config"]["Entrypoint"] == ["/pause"]
    with tarfile.open(fileobj=io.BytesIO(layer)) as tar:
        (member,) = tar
        assert (member.name, member.mode, member.uid, member.gid) == ("pause", 0o755, 0, 0)
    assert members(layer)["pause"] == (INFRA / f"pause-{architecture}").read_bytes()


def image_id(architecture: str) -> str:
    return str(json.loads(members(docker_archive(architecture))["manifest.json"])[0]["Config"]).removesuffix(".json")


IDS = [
    pytest.param("amd64", "772a1b238b7cbc810da1054d87931837c5f0cdb6c6094df81e3ac1d461462d04", id="amd64"),
    pytest.param("arm64", "f46d6cda7f7c4297711c6db4f319644d68e9a7f8a951d873636d0dca7d20a0b8", id="arm64"),
]


@pytest.mark.parametrize(("architecture", "expected"), IDS)
def test_one_tag_means_one_image(architecture: str, expected: str) -> None:
    """If this fails, the image has changed: change BUILTIN_INFRA_IMAGE and these ids as well."""
    assert BUILTIN_INFRA_IMAGE == "dockershim/pause:1"
    assert image_id(architecture) == expected


def test_the_archive_is_always_the_same() -> None:
    assert docker_archive("amd64") == docker_archive("amd64")
    assert len(docker_archive("amd64")) < 32 << 10


def test_an_architecture_without_a_program_is_refused() -> None:
    with pytest.raises(FailedPrecondition, match="pod-infra-container-image"):
        docker_archive("riscv64")
