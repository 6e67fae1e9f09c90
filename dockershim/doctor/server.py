"""The dockershim server: whether it responds, its status, and the privileges of its process."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import grpc

from dockershim.api.cri.v1 import api_pb2 as cri
from dockershim.common.listener import listener
from dockershim.doctor.findings import RUNTIME_READY, Finding, fail, ok, warn
from dockershim.doctor.node_files import SHORT, output, text
from dockershim.doctor.units import Unit, show
from dockershim.server import cri_dockerd
from dockershim.server.config import Config
from dockershim.server.cri_calls import call, connect, reason

SERVER: Final = "server"
UNIT: Final = "dockershim.service"
#: Seconds, of one call and of all.
_DEADLINE: Final = 4.0
_ALL_CALLS: Final = 7.0
#: By the type of a condition; the log of the server's unit says more of all others.
_FIXES: Final[Mapping[str, str]] = {
    RUNTIME_READY: "systemctl restart docker.service",
    "CgroupDriverMatches": "remove --cgroup-driver from the flags, then: systemctl restart {unit}",
}
_QUEUE_FULL: Final = "its listen queue is full"
_FIXES_OF_CONNECTING: Final[Mapping[str, str]] = {
    _QUEUE_FULL: "systemctl restart {unit}",
    os.strerror(errno.EACCES): "sudo dockershim doctor",
}
#: The unit of the package dockershim-cri-dockerd. The real cri-dockerd's has the same name.
_DROP_IN: Final = "cri-docker.service"
_SERVICES: Final = (UNIT, _DROP_IN)
#: The options of the server by which this command finds what it looks at.
_LOOKED_AT: Final = (
    "docker_endpoint",
    "root_directory",
    "state_directory",
    "adopt_from",
    "network_plugin",
    "cni_conf_dir",
    "cni_bin_dir",
    "pod_cidr",
    "streaming_bind_addr",
    "runtime_hooks_dir",
    "cgroup_driver",
)
#: capabilities(7): number, name, what does not work without it.
_NEEDED: Final = (
    (1, "CAP_DAC_OVERRIDE", "files of the engine and of pods"),
    (12, "CAP_NET_ADMIN", "networks of pods"),
    (21, "CAP_SYS_ADMIN", "network namespaces of pods"),
)
_USEFUL: Final = ((24, "CAP_SYS_RESOURCE", "OOM scores below the server's own, and privileged containers"),)


@dataclass(frozen=True, slots=True)
class ServerAnswer:
    """What the server on the CRI socket reports; ``failure`` is why there is nothing. ``seconds`` Version took.

    ``pid`` is its process, also if it hangs; None if there is no listener.
    """

    version: cri.VersionResponse | None = None
    status: cri.StatusResponse | None = None
    sandboxes: Sequence[cri.PodSandbox] | None = None
    containers: Sequence[cri.Container] | None = None
    failure: str = ""
    seconds: float = 0.0
    pid: int | None = None

    @property
    def info(self) -> Mapping[str, Any] | None:
        """What only dockershim reports; None if it is another server."""
        try:
            info = json.loads(self.status.info["config"]) if self.status is not None else None
        except (ValueError, RecursionError):
            return None
        return info if isinstance(info, dict) and "dockershim" in info else None


def ask(endpoint: str) -> ServerAnswer:
    """Ask the server on ``unix:///path``, for 7 s at most. Never raises for what the server does."""
    pid, problem = peer(endpoint)
    if problem:
        return ServerAnswer(failure=problem)
    began = time.monotonic()

    def left() -> float:
        return max(0.1, min(_DEADLINE, began + _ALL_CALLS - time.monotonic()))

    with connect(endpoint) as channel:
        version = None
        try:
            version = call(channel, cri.VersionRequest(), cri.VersionResponse, left())
        except grpc.RpcError as error:
            # A server that never saw its engine has no version, but a status.
            if error.code() is not grpc.StatusCode.UNAVAILABLE or pid is None:
                return ServerAnswer(failure=reason(error), pid=pid)
        seconds = time.monotonic() - began
        try:
            status = call(channel, cri.StatusRequest(verbose=True), cri.StatusResponse, left())
        except grpc.RpcError as error:
            return ServerAnswer(failure=reason(error), pid=pid)
        try:
            sandboxes = call(channel, cri.ListPodSandboxRequest(), cri.ListPodSandboxResponse, left()).items
            containers = call(channel, cri.ListContainersRequest(), cri.ListContainersResponse, left()).containers
        except grpc.RpcError:
            # The engine is away, which the conditions tell.
            return ServerAnswer(version, status, None, None, "", seconds, pid)
        return ServerAnswer(version, status, sandboxes, containers, "", seconds, pid)


def peer(endpoint: str) -> tuple[int | None, str]:
    """The process that listens on ``unix:///path``, None if it is not visible; and why a connection is impossible."""
    try:
        pid = listener(endpoint.removeprefix("unix://"))
    except (TimeoutError, BlockingIOError):
        return None, _QUEUE_FULL
    except OSError as error:
        return None, os.strerror(error.errno) if error.errno else str(error)
    if pid == 1:
        # systemd holds the socket for one of our services: only one of them can run.
        told = (output(["systemctl", "show", "--property=MainPID", "--value", *_SERVICES]) or "").split()
        pid = next((int(word) for word in told if word.isascii() and word.isdecimal() and word != "0"), 0)
    return pid or None, ""


def services() -> dict[str, Unit]:
    """The units that may run the server, by name, as far as they exist."""
    return show(_SERVICES)


def unit_of(units: Mapping[str, Unit], endpoint: str, pid: int | None) -> Unit:
    """The unit of the server with this process on this endpoint, also if it does not run; ``units`` are services().

    It is dockershim.service but on a node with the package dockershim-cri-dockerd.
    """
    own, drop_in = units.get(UNIT, Unit(UNIT)), units.get(_DROP_IN)
    if drop_in is None or (pid is not None and pid == own.pid):
        return own
    unused = own.enabled in ("", "disabled") and not own.is_active
    if pid == drop_in.pid or (unused and Path(endpoint).name == Path(cri_dockerd.ENDPOINT).name):
        return drop_in
    return own


def check_server(answer: ServerAnswer, endpoint: str, unit: str = UNIT) -> Iterator[Finding]:
    """Whether a server answers, and whether it is ours. ``unit`` runs it."""
    if answer.failure:
        if answer.pid is None:
            fix = _FIXES_OF_CONNECTING.get(answer.failure, "systemctl start {unit}").format(unit=unit)
            yield fail(SERVER, f"no server responds on {endpoint}: {answer.failure}", fix)
        else:
            found = f"process {answer.pid} listens on {endpoint} but does not respond ({answer.failure})"
            yield fail(SERVER, found, f"systemctl restart {unit}")
        return
    if answer.info is None:
        found = f"the server on {endpoint} is not dockershim"
        yield fail(SERVER, found, "set its endpoint: dockershim doctor --container-runtime-endpoint=unix:///path")
        return
    milliseconds = answer.seconds * 1000
    behind = f" with Docker {answer.version.runtime_version}" if answer.version is not None else ""
    version = answer.info["dockershim"]
    yield ok(SERVER, f"dockershim {version}{behind}, responds in {milliseconds:.0f} ms on {endpoint}")
    yield from _conditions(answer.status or cri.StatusResponse(), unit)
    yield from _hanging(answer.status or cri.StatusResponse())


def check_unit(unit: Unit) -> Iterator[Finding]:
    """Whether the server starts at boot; a unit that does not exist is not reported."""
    title = "start at boot"
    if unit.enabled == "disabled":
        yield warn(title, f"{unit.name} is not enabled: no server after a reboot", f"systemctl enable {unit.name}")
    elif unit.enabled.startswith("enabled"):
        yield ok(title, f"{unit.name} is {unit.enabled}")


def log_of(unit: str) -> str:
    """The command that shows the end of a unit's log."""
    return f"journalctl -u {unit} -n 50"


def _conditions(status: cri.StatusResponse, unit: str) -> Iterator[Finding]:
    for condition in status.status.conditions:
        if condition.status:
            yield ok(condition.type, "true")
        else:
            fix = _FIXES.get(condition.type, log_of(unit)).format(unit=unit)
            yield fail(condition.type, condition.message or condition.reason or "false", fix)


def _hanging(status: cri.StatusResponse) -> Iterator[Finding]:
    try:
        paths = json.loads(status.info["hostPaths"])["hanging"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return
    for path in list(paths)[:5] if isinstance(paths, list | dict) else ():
        found = f"{path} does not respond: pods that mount it cannot start"
        yield fail("hanging host path", found, f"umount --force --lazy {shlex.quote(str(path))}")


def check_flags(running: Config | None, ours: Config, flags: Sequence[str]) -> Iterator[Finding]:
    """Whether this command and the server have the same configuration. ``running`` is None if it is not known."""
    if running is None:
        return
    differing = [key for key in _LOOKED_AT if getattr(running, key) != getattr(ours, key)]
    if not differing:
        yield ok("configuration", "the same as that of the server")
        return
    found = f"the server has different values of {', '.join(differing)}"
    fix = f"dockershim doctor {shlex.join(flags)}" if flags else "run this command in the environment of the server"
    yield warn("configuration", found, fix)


def looked_at(ours: Config, running: Config | None) -> Config:
    """What this command looks at: the values that are set for it, and otherwise those of the running server."""
    if running is None:
        return ours
    default = Config()
    names = [field.name for field in dataclasses.fields(Config)]
    left_out = [name for name in names if getattr(ours, name) == getattr(default, name)]
    return dataclasses.replace(ours, **{name: getattr(running, name) for name in left_out})


def running_config(
    pid: int | None, load: Callable[[Sequence[str], Mapping[str, str]], Config], proc: Path = Path("/proc")
) -> tuple[Config | None, list[str]]:
    """The configuration of a running server, and its flags.

    ``load`` makes it from the environment and the words of the command line from ``serve``, or cri-dockerd's name, on.
    """
    words = (text(proc / str(pid) / "cmdline") or "").split("\0")[:-1]
    # A folder may have cri-dockerd's name as well.
    command = "serve" if "serve" in words else next(filter(cri_dockerd.is_name, words), None)
    if pid is None or command is None:
        return None, []
    begin = words.index(command)
    flags = words[begin + 1 :]
    variables = (text(proc / str(pid) / "environ", 1 << 20) or "").split("\0")
    environ = dict(pair.split("=", 1) for pair in variables if "=" in pair)
    try:
        return load(words[begin:], environ), flags
    except (Exception, SystemExit):  # a server of another version has other options
        return None, flags


def check_privileges(status: str, who: str, euid: int, unit: str = UNIT) -> Iterator[Finding]:
    """``status`` is /proc/<pid>/status of ``who``, in words; ``euid`` is this command's user."""
    if euid == 0:
        yield ok("root", "running as root")
    else:
        yield fail("root", f"running as user {euid}, so some checks are incomplete", "sudo dockershim doctor")
    effective = _effective(status)
    if effective is None:
        return
    missing = [row for row in _NEEDED if not effective >> row[0] & 1]
    lacking = [row for row in _USEFUL if not effective >> row[0] & 1]
    edit = f"remove CapabilityBoundingSet= and User= from the unit (systemctl edit {unit})"
    for level, rows in ((fail, missing), (warn, lacking)):
        for _, name, use in rows:
            yield level("privileges", f"{who} does not have {name}, which is required for {use}", edit)
    if not missing and not lacking:
        yield ok("privileges", f"{who} has the required capabilities")


def _effective(status: str) -> int | None:
    for line in status.splitlines():
        if line.startswith("CapEff:"):
            try:
                return int(line.split()[1], 16)
            except (IndexError, ValueError):
                return None
    return None


def privileges_of(pid: int | None, proc: Path = Path("/proc")) -> tuple[str, str]:
    """/proc/<pid>/status of the server, or of this process if it does not run; and who that is."""
    of_server = text(proc / str(pid) / "status", SHORT) if pid is not None else None
    if of_server is not None:
        return of_server, f"the server (process {pid})"
    if os.geteuid() != 0:
        return "", ""  # that it is not root is enough
    return text(proc / "self/status", SHORT) or "", "this command (the server is not running)"


def check_mount_namespace(servers: str | None, machines: str | None, unit: str = UNIT) -> Iterator[Finding]:
    """The mount namespaces of the server and of process 1, as /proc/<pid>/ns/mnt links; None if not known."""
    if servers is None or machines is None:
        return
    if servers == machines:
        yield ok("mount namespace", "the server runs in the host's mount namespace")
        return
    found = "the server has its own, so pinned network namespaces are not visible to the engine and to CNI daemons"
    edit = f"remove PrivateTmp=, ProtectSystem= and similar from the unit (systemctl edit {unit})"
    yield fail("mount namespace", found, edit)


def namespace_of(pid: int | None, proc: Path = Path("/proc")) -> str | None:
    try:
        return os.readlink(proc / str(pid) / "ns/mnt")  # noqa: PTH115 - the link names no path
    except OSError:
        return None
