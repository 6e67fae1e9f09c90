"""The list of all checks, and what they look at on a real node."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotInTime
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from shutil import which
from typing import Final, TypeVar

from dockershim.common.mountinfo import mounts
from dockershim.doctor import daemon, engine, kubelet, network, node, server, state
from dockershim.doctor.findings import Finding, fail
from dockershim.doctor.node_files import answers, is_program, output, text
from dockershim.doctor.units import Unit
from dockershim.hooks.config import Reading, read_folder
from dockershim.network.netns import Pins
from dockershim.server.config import Config
from dockershim.translate.capabilities import Capabilities

T = TypeVar("T")

#: Makes a configuration from flags and environment. May raise anything.
Load = Callable[[Sequence[str], Mapping[str, str]], Config]

#: Seconds for which a check waits for what another one asks; longer than the deadlines of engine and server.
_PATIENCE: Final = 8.0
_SYS: Final = Path("/proc/sys")
_PROC: Final = Path("/proc")
_POD_LOGS: Final = Path("/var/log/pods")


@dataclass(frozen=True, slots=True)
class Question:
    """The command's input: ``endpoint`` is where the server should listen. ``config`` is the configuration that this
    command has; what it leaves out is read from the running server."""

    config: Config
    endpoint: str
    environ: Mapping[str, str]
    load: Load


class Node:
    """What several checks need. Each thing is read once, in a thread of its own that may hang."""

    def __init__(self, question: Question) -> None:
        self.question = question
        self._running = _begin(self._read_running, "read the server's configuration")
        self._engine = _begin(lambda: engine.ask(self.config), "ask the engine")
        self._server = _begin(lambda: server.ask(question.endpoint), "ask the server")
        self._services = _begin(server.services, "ask systemd")
        self._kubelet = _begin(kubelet.read_kubelet, "read the kubelet's files")

    def _read_running(self) -> tuple[Config | None, list[str]]:
        pid, _ = server.peer(self.question.endpoint)
        return server.running_config(pid, self.question.load)

    @property
    def running(self) -> tuple[Config | None, list[str]]:
        """What the server runs with, None if that is not known, and its flags. Raises TimeoutError."""
        return self._running.result(_PATIENCE)

    @cached_property
    def config(self) -> Config:
        """What to look at."""
        try:
            running, _ = self.running
        except Exception:  # the check of the server itself reports a server that cannot be read
            running = None
        return server.looked_at(self.question.config, running)

    @property
    def engine(self) -> engine.EngineAnswer:
        """Raises TimeoutError."""
        return self._engine.result(_PATIENCE)

    @property
    def features(self) -> Capabilities | None:
        """The engine's features; None if it does not respond."""
        try:
            return self.engine.features
        except Exception:  # the check of the engine itself reports it
            return None

    @property
    def server(self) -> server.ServerAnswer:
        """Raises TimeoutError."""
        return self._server.result(_PATIENCE)

    @property
    def unit(self) -> Unit:
        """The unit of the server; one that is not installed if systemd does not tell. Raises nothing."""
        try:
            return server.unit_of(self._services.result(_PATIENCE), self.question.endpoint, self.server.pid)
        except Exception:  # what systemd does not tell spoils no check: only the fixes have it
            return Unit(server.UNIT)

    @property
    def kubelet(self) -> kubelet.Kubelet | None:
        """Raises TimeoutError."""
        return self._kubelet.result(_PATIENCE)

    @cached_property
    def network(self) -> network.PodNetwork | None:
        return network.choose(self.config)


def _begin(work: Callable[[], T], name: str) -> Future[T]:
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    # A daemon: Python must not wait for it at its end.
    threading.Thread(target=run, name=name, daemon=True).start()
    return future


def _check_server(at: Node) -> Iterator[Finding]:
    yield from server.check_server(at.server, at.question.endpoint, at.unit.name)
    yield from server.check_unit(at.unit)


def _check_process(at: Node) -> Iterator[Finding]:
    running, flags = at.running
    yield from server.check_flags(running, at.config, flags)
    pid = at.server.pid
    found, who = server.privileges_of(pid)
    yield from server.check_privileges(found, who, os.geteuid(), at.unit.name)
    yield from server.check_mount_namespace(server.namespace_of(pid), server.namespace_of(1), at.unit.name)


def _check_engine(at: Node) -> Iterator[Finding]:
    endpoint = at.config.docker_endpoint
    others = engine.other_sockets(endpoint, at.question.environ.get("DOCKER_HOST", ""))
    yield from engine.check_engine(at.engine, endpoint, others)


def _check_engines_node(at: Node) -> Iterator[Finding]:
    if (features := at.features) is not None:
        yield from engine.check_cgroups(features, at.config.cgroup_driver)
        yield from engine.check_lsms(features, node.kernel_lsms())
        yield from engine.check_runtimes(at.engine.runtimes, at.config.oci_runtime, is_program)
        if at.config.docker_endpoint.startswith("unix://"):
            found = daemon.read_daemon()
            settings = text(Path(found.config_file)) if found is not None else None
            yield from daemon.check_logs(at.engine.log_driver, found, settings)


def _check_kubelet(at: Node) -> Iterator[Finding]:
    yield from kubelet.check_kubelet(at.kubelet, at.question.endpoint, at.features)
    yield from kubelet.check_swap(text(_PROC / "swaps") or "", at.kubelet)
    crictl = which("crictl") is not None
    yield from kubelet.check_crictl(text(kubelet.CRICTL), at.question.endpoint, installed=crictl)


def _check_cni(at: Node) -> Iterator[Finding]:
    yield from network.check_configuration(at.network, at.config.cni_conf_dir)
    yield from network.check_plugins(at.network, at.config.cni_bin_dir)


def _check_forwarding(at: Node) -> Iterator[Finding]:
    yield from network.check_sysctls(_SYS, ipv6=network.has_ipv6(at.network, at.config.pod_cidr))
    yield from network.check_forward(output(["iptables", "-S", "FORWARD"]), at.network)


def _check_streaming(at: Node) -> Iterator[Finding]:
    yield from network.check_streaming(at.config, at.server.pid)


def _check_propagation(at: Node) -> Iterator[Finding]:
    folders = [Path("/"), *([node.KUBELET] if node.KUBELET.exists() else [])]
    yield from node.check_propagation(mounts(), folders)


def _check_space(at: Node) -> Iterator[Finding]:
    folders = {"checkpoints": at.config.root_directory, "pins": at.config.state_directory, "logs": _POD_LOGS}
    if (features := at.features) is not None and features.root_dir:
        folders["images"] = Path(features.root_dir)
    yield from node.check_space({name: (folder, node.measure(folder)) for name, folder in folders.items()})


def _check_inotify(at: Node) -> Iterator[Finding]:
    yield from node.check_inotify(_SYS, node.try_to_watch())


def _check_checkpoints(at: Node) -> Iterator[Finding]:
    yield from state.check_checkpoints(at.config.root_directory, at.unit.name)


def _check_pods(at: Node) -> Iterator[Finding]:
    yield from state.check_stuck(at.server.sandboxes, at.server.containers, time.time())
    yield from state.check_pins(*_pins(at), at.unit.name)


def _pins(at: Node) -> tuple[set[str], set[str], set[str] | None]:
    pins = Pins(at.config.state_directory)
    before = pins.pinned()
    if at.features is None:
        return before, before, None
    # Read again: a pod that was created since the first answer has a pin as well.
    again = engine.ask(at.config)
    known = None if again.failure is not None else {*again.containers, *(one.id for one in at.server.sandboxes or ())}
    return before, pins.pinned(), known


def _check_hooks(at: Node) -> Iterator[Finding]:
    reading = read_folder(at.config.runtime_hooks_dir, Reading())
    yield from state.check_hooks(reading, state.reachable(reading.servers), at.config.runtime_hooks_dir)


def _check_cri_dockerd(at: Node) -> Iterator[Finding]:
    told = (output(["systemctl", "is-active", *state.CRI_DOCKERD_UNITS]) or "").split()
    units = [unit for unit, word in zip(state.CRI_DOCKERD_UNITS, told, strict=False) if word == "active"]
    ours = Path(at.question.endpoint.removeprefix("unix://"))
    sockets = [path for path in state.CRI_DOCKERD_SOCKETS if not _same(path, ours) and answers(str(path))]
    if any(_same(path, ours) for path in state.CRI_DOCKERD_SOCKETS) and at.server.info is not None:
        # They are our own, of the package dockershim-cri-dockerd: no other server can have that socket.
        units = []
    folder = state.CRI_DOCKERD_ROOT / "sandbox"
    checkpoints = sum(1 for _ in folder.iterdir()) if folder.is_dir() else 0
    adopts = state.CRI_DOCKERD_ROOT in (*at.config.adopt_from, at.config.root_directory)
    yield from state.check_cri_dockerd(units, sockets, checkpoints, adopts=adopts)


def _same(one: Path, other: Path) -> bool:
    return one.resolve() == other.resolve()


#: By the names under which a check is reported if it does not end. The report has this order.
CHECKS: Final[Mapping[str, Callable[[Node], Iterator[Finding]]]] = {
    "engine": _check_engine,
    "cgroups": _check_engines_node,
    "server": _check_server,
    "privileges": _check_process,
    "kubelet": _check_kubelet,
    "CNI configuration": _check_cni,
    "forwarding": _check_forwarding,
    "streaming address": _check_streaming,
    "mount propagation": _check_propagation,
    "disk space": _check_space,
    "inotify": _check_inotify,
    "checkpoints": _check_checkpoints,
    "pods": _check_pods,
    "hook servers": _check_hooks,
    "cri-dockerd": _check_cri_dockerd,
}


def run(question: Question, report: Callable[[str, list[Finding]], None]) -> None:
    """Run all checks at once, and ``report`` the findings of each. Returns when all have ended, which may be never."""
    at = Node(question)
    lock = threading.Lock()

    def one(name: str) -> None:
        findings = _findings(name, at)
        with lock:
            report(name, findings)

    threads = [threading.Thread(target=one, args=(name,), name=name, daemon=True) for name in CHECKS]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _findings(name: str, at: Node) -> list[Finding]:
    findings: list[Finding] = []
    try:
        # One by one: what was found before an error is told, too.
        for finding in CHECKS[name](at):
            findings.append(finding)  # noqa: PERF402
    except NotInTime:
        findings.append(unanswered(name))
    except Exception as error:
        # What is read may have any content; the other checks must be reported all the same.
        findings.append(fail(name, f"the check failed: {type(error).__name__}: {error}", "report this as a bug"))
    return findings


def unanswered(name: str) -> Finding:
    """The finding for a check that does not end."""
    found = "the check timed out: a mount, a device or a program hangs"
    return fail(name, found, "find processes in state D and what blocks them: ps -eo pid,stat,wchan:32,args")
