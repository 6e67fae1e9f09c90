"""What setup looks at in addition to the findings of doctor."""

from __future__ import annotations

import ipaddress
import platform
import struct
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from dockershim.changes.disk import Disk
from dockershim.common.mountinfo import Mount, mounts
from dockershim.doctor import engine, kubelet, network, server, units
from dockershim.doctor.checks import Question
from dockershim.doctor.daemon import Daemon, read_daemon
from dockershim.doctor.findings import Finding
from dockershim.doctor.node_files import TABLE, is_program, output, text
from dockershim.doctor.units import KUBELET_UNIT, SOCKET_UNIT
from dockershim.server.config import DEFAULT_FILE, Config

#: Where the package has dockershim-runc.
PACKAGED_RUNC: Final = "/usr/lib/dockershim/dockershim-runc"
#: Seconds that an engine may take for a reload, and between two looks.
_RELOAD: Final = 10.0
_PAUSE: Final = 0.5
_ARCHITECTURES: Final = {"x86_64": "amd64", "aarch64": "arm64"}


@dataclass(frozen=True, slots=True)
class Facts:
    """The node, as far as the plan depends on it. ``findings`` are doctor's.

    ``config`` is what doctor looked at, ``settings_folder`` where drop-ins of the server's configuration are.
    ``units`` are the states of units, in the words of ``systemctl is-enabled`` and ``is-active``; a unit that does not
    exist is not there. ``unit`` is the one of them that runs the server, and ``socket`` may hold the server's socket.
    ``runc`` is the content of our own dockershim-runc, None where the package has it at ``PACKAGED_RUNC`` or where
    there is none for this machine. ``read`` gives the content of a file, None if there is none; it raises ChangeError.
    """

    findings: Sequence[Finding]
    config: Config
    endpoint: str
    read: Callable[[str], bytes | None]
    settings_folder: str = f"{DEFAULT_FILE}.d"
    engine: engine.EngineAnswer = field(default_factory=engine.EngineAnswer)
    daemon: Daemon | None = None
    units: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    unit: str = server.UNIT
    socket: str = SOCKET_UNIT
    kubelet_command: str = ""
    plugins: frozenset[str] = frozenset()
    network: str = ""
    routes: tuple[ipaddress.IPv4Network, ...] = ()
    mounts: tuple[Mount, ...] = ()
    modules: frozenset[str] = frozenset()
    packaged_runc: bool = False
    runc: bytes | None = None


def look(question: Question, findings: Sequence[Finding], disk: Disk, settings_folder: str) -> Facts:
    """Read the node. Doctor has looked at the same before, so nothing here hangs that did not hang there."""
    pid, _ = server.peer(question.endpoint)
    running, _ = server.running_config(pid, question.load)
    config = server.looked_at(question.config, running)
    found = network.choose(config)
    command = kubelet.read_command()
    unit = server.unit_of(server.services(), question.endpoint, pid).name
    socket = unit.replace(".service", ".socket")

    def read(path: str) -> bytes | None:
        state = disk.read(path)
        return None if state is None else state.content

    folders = (*config.cni_bin_dir, network.DEBIANS_PLUGINS)
    plugins = (path for folder in folders if folder.is_dir() for path in folder.iterdir())
    return Facts(
        findings=findings,
        config=config,
        endpoint=question.endpoint,
        read=read,
        settings_folder=settings_folder,
        engine=engine.ask(config),
        daemon=read_daemon() if config.docker_endpoint.startswith("unix://") else None,
        units={
            name: (one.enabled, one.state)
            for name, one in units.show((unit, socket, KUBELET_UNIT)).items()
            if one.enabled
        },
        unit=unit,
        socket=socket,
        kubelet_command=command.value if command else "",
        plugins=frozenset(str(path) for path in plugins if is_program(str(path))),
        network=found.network.source if found is not None and found.network is not None else "",
        routes=tuple(routes(text(Path("/proc/net/route"), TABLE) or "")),
        mounts=tuple(mounts()),
        modules=frozenset(_loadable((network.MODULE,))),
        packaged_runc=is_program(PACKAGED_RUNC),
        runc=_own_runc(),
    )


def _loadable(names: Sequence[str]) -> Iterator[str]:
    """The modules of these that the kernel would load."""
    for name in names:
        if (output(["modprobe", "--dry-run", "--first-time", "--verbose", name]) or "").strip():
            yield name


def _own_runc() -> bytes | None:
    name = _ARCHITECTURES.get(platform.machine())
    program = Path(__file__).parents[1] / f"runc/dockershim-runc-{name}"
    return program.read_bytes() if name and program.is_file() else None


def routes(table: str) -> Iterator[ipaddress.IPv4Network]:
    """The destinations of /proc/net/route (proc_pid_net(5)): addresses are hexadecimal, in the machine's byte order."""
    for line in table.splitlines()[1:]:
        fields = line.split()
        try:
            address, mask = (struct.pack("=I", int(fields[index], 16)) for index in (1, 7))
            yield ipaddress.IPv4Network((address, str(ipaddress.IPv4Address(mask))))
        except (ValueError, IndexError, struct.error):
            continue


def engine_keeps_containers(config: Config) -> bool:
    """Whether a restart of the engine stops no container: live-restore is on, or none runs.

    It waits a while for an engine that is still busy with its reload, which would turn live-restore on.
    """
    deadline = time.monotonic() + _RELOAD
    while True:
        answer = engine.ask(config)
        if answer.features is not None and (answer.features.live_restore or answer.running == 0):
            return True
        if time.monotonic() > deadline:
            return False
        time.sleep(_PAUSE)


def no_container_runs(config: Config) -> bool:
    """Whether the engine answers, and runs no container."""
    answer = engine.ask(config)
    return answer.features is not None and answer.running == 0
