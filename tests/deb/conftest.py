"""A copy of the clean Debian for each test, with the folders of the node that a server beside its engine needs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.deb.repacked import repacked
from tests.engine.pods import BUSYBOX
from tests.node.mounts import MS_PRIVATE, bind, mount, propagate

#: The node's own; in Debian they are the same folders of the one machine.
SHARED = ("/proc", "/sys", "/dev", "/run", "/var/lib/docker", "/var/lib/cni", "/var/log", "/etc/cni", "/opt/cni/bin")
#: apt's and dpkg's own notes, and caches that others make of what is installed.
NOT_OURS = ("var/lib/dpkg/", "var/lib/apt/", "var/cache/", "tmp/", "root/", "etc/ld.so.cache")
OLD = "0.0.1-1"
SOCKET = "/run/dockershim.sock"
POD = {"metadata": {"name": "pod", "namespace": "tests", "uid": "uid"}, "log_directory": "/var/log/pods/pod"}
CONTAINER = {
    "metadata": {"name": "main"},
    "image": {"image": BUSYBOX},
    "command": ["sleep", "1000"],
    "log_path": "main.log",
}


@dataclass(frozen=True, slots=True)
class Debian:
    """A Debian in the folder ``root``, and the package in two versions."""

    root: Path
    package: Path
    old_package: Path

    def run(self, *command: str) -> str:
        """Run a command in it and return all that it prints; AssertionError if it fails."""
        done = self.attempt(*command)
        assert done.returncode == 0, f"{command}:\n{done.stdout}"
        return done.stdout

    def attempt(self, *command: str) -> subprocess.CompletedProcess[str]:
        environment = {"PATH": "/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin", "DEBIAN_FRONTEND": "noninteractive"}
        return subprocess.run(
            ["chroot", self.root, *command],
            env=environment | {"HOME": "/root", "LANG": "C.UTF-8"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def install(self, *packages: Path) -> str:
        for package in packages:
            shutil.copy(package, self.root / "tmp")
        names = (f"/tmp/{package.name}" for package in packages)
        return self.run("apt-get", "install", "-y", "--no-install-recommends", *names)

    def asked_of_systemd(self) -> list[str]:
        """What maintainer scripts have asked systemctl for."""
        asked = Path("/run/systemctl.asked")
        return asked.read_text().splitlines() if asked.exists() else []

    def server(self, service: str = "dockershim.service") -> int | None:
        """The pid of the server, if it runs."""
        done = self.attempt("systemctl", "is-active", service)
        return int(Path(f"/run/{service}.pid").read_text()) if done.returncode == 0 else None


@pytest.fixture(scope="session")
def packages(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The package, and the same with a version that sorts before every other."""
    package = Path(os.environ["TEST_DEB_PACKAGE"])
    return package, repacked(package, OLD, tmp_path_factory.mktemp("old"))


@contextmanager
def clean_debian(package: Path, old_package: Path) -> Iterator[Debian]:
    """A Debian without the package. What is written to it goes to memory: dpkg syncs each file."""
    with TemporaryDirectory(prefix="debian-") as folder, ExitStack() as mounts:
        scratch, root = Path(folder, "scratch"), Path(folder, "root")
        scratch.mkdir()
        root.mkdir()
        mount("tmpfs", scratch, "tmpfs", data="mode=755")
        mounts.callback(unmount, scratch)
        (scratch / "upper").mkdir()
        (scratch / "work").mkdir()
        layers = f"lowerdir={os.environ['TEST_DEB_ROOT']},upperdir={scratch}/upper,workdir={scratch}/work"
        mount("overlay", root, "overlay", data=layers)
        mounts.callback(unmount, root)
        for shared in SHARED:
            inside = root / shared[1:]
            inside.mkdir(parents=True, exist_ok=True)
            bind(Path(shared), inside)
            mounts.callback(unmount, inside)
        # Maintainer scripts look for it, and ask systemd only if it is there.
        Path("/run/systemd/system").mkdir(parents=True)
        # Maintainer scripts have no /usr/local in their PATH.
        stand_in = root / "usr/bin/systemctl"
        stand_in.rename(stand_in.with_name("systemctl.real"))
        shutil.copy(Path(__file__).with_name("systemctl.py"), stand_in)
        stand_in.chmod(0o755)
        made = Debian(root, package, old_package)
        try:
            yield made
        finally:
            made.attempt("systemctl", "stop", "dockershim.service", "cri-docker.service")
            for container in containers():
                subprocess.run(["docker", "rm", "--force", container], check=True, capture_output=True)
            shutil.rmtree("/run/systemd")
            shutil.rmtree("/run/dockershim", ignore_errors=True)
            for left in ("systemctl.asked", "dockershim.log", "dockershim.sock", "cri-dockerd.sock"):
                Path("/run", left).unlink(missing_ok=True)


def unmount(folder: Path) -> None:
    # Shared mounts would go in the node too.
    propagate(folder, MS_PRIVATE)
    subprocess.run(["umount", "--recursive", "--lazy", folder], check=True)


@pytest.fixture
def debian(packages: tuple[Path, Path]) -> Iterator[Debian]:
    """A clean Debian of the test's own."""
    with clean_debian(*packages) as made:
        yield made


@pytest.fixture(scope="module")
def installed(packages: tuple[Path, Path]) -> Iterator[tuple[Debian, str]]:
    """A Debian with the package, for tests that start nothing, and what the installation said."""
    with clean_debian(*packages) as made:
        yield made, made.install(made.package)


@pytest.fixture(scope="session")
def drop_ins(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The package dockershim-cri-dockerd, and the same with the version and the dependency of the old package."""
    package = Path(os.environ["TEST_DEB_DROP_IN"])
    return package, repacked(package, OLD, tmp_path_factory.mktemp("old-drop-in"))


def crictl(*arguments: str, socket: str = SOCKET) -> str:
    """What crictl prints of a call to the server; AssertionError with its error."""
    done = subprocess.run(["crictl", f"--runtime-endpoint=unix://{socket}", *arguments], capture_output=True, text=True)
    assert done.returncode == 0, f"crictl {arguments}:\n{done.stderr}{log_end()}"
    return done.stdout.strip()


def log_end() -> str:
    log = Path("/run/dockershim.log")
    return log.read_text(errors="replace")[-3000:] if log.exists() else ""


def answers(timeout: float = 30, socket: str = SOCKET) -> str:
    """What `crictl version` prints, once the server is there."""
    deadline = time.monotonic() + timeout
    ask = ["crictl", f"--runtime-endpoint=unix://{socket}", "version"]
    while True:
        done = subprocess.run(ask, capture_output=True, text=True)
        if done.returncode == 0:
            return done.stdout
        assert time.monotonic() < deadline, f"{done.stderr}{log_end()}"
        time.sleep(0.2)


def run_pod(folder: Path, socket: str = SOCKET) -> str:
    """Start the pod with its container, and return the pod's id."""
    for name, content in (("pod", POD), ("container", CONTAINER)):
        (folder / f"{name}.json").write_text(json.dumps(content))
    crictl("pull", BUSYBOX, socket=socket)
    pod = crictl("runp", str(folder / "pod.json"), socket=socket)
    container = crictl("create", pod, str(folder / "container.json"), str(folder / "pod.json"), socket=socket)
    crictl("start", container, socket=socket)
    return pod


def containers() -> Mapping[str, str]:
    """The running containers of the engine, by id, with the time of their starts: a restart would change it."""
    ids = subprocess.run(
        ["docker", "ps", "-q", "--no-trunc"], capture_output=True, text=True, check=True
    ).stdout.split()
    inspect = ["docker", "inspect", "--format={{.Id}} {{.State.StartedAt}}", *ids]
    shown = subprocess.run(inspect, capture_output=True, text=True, check=True).stdout if ids else ""
    return dict(line.split() for line in shown.splitlines())


def files(debian: Debian) -> set[str]:
    """All paths on Debian's own disk but those that are not ours."""
    found = debian.run("find", "/", "-xdev", "-printf", "%P\n").splitlines()
    return {path for path in found if not path.startswith(NOT_OURS)}
