"""A node in memory: systemd's units, cri-dockerd, dockershim, a kubelet, and the pods of the engine below both.

It is copied before each change, as a process that is killed there leaves it.
"""

from __future__ import annotations

import io
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Self

from rich.text import Text

from dockershim.changes.disk import ChangeError
from dockershim.changes.report import Report
from dockershim.doctor.server import UNIT
from dockershim.doctor.units import KUBELET_UNIT, SOCKET_UNIT, Unit
from dockershim.migrate import ready
from dockershim.migrate.command import Machine, Move
from dockershim.migrate.endpoints import flag, socket_path
from dockershim.migrate.facts import Facts
from dockershim.migrate.pods import Container, Pod, Pods
from dockershim.server.config import load
from tests.unit.changes.memory import MemoryDisk

OLD: Final = "cri-docker.service"
OLD_SOCKET: Final = "cri-docker.socket"
OLD_PATH: Final = "/run/cri-dockerd.sock"
ROOT: Final = "/var/lib/dockershim"
OLD_ROOT: Final = "/var/lib/cri-dockerd"
FLAGS_ENV: Final = "/var/lib/kubelet/kubeadm-flags.env"
INSTANCE: Final = "/var/lib/kubelet/instance-config.yaml"
CONFIG: Final = "/var/lib/kubelet/config.yaml"
CRICTL: Final = "/etc/crictl.yaml"
SETTINGS: Final = "/etc/dockershim/config.toml.d/60-migrate.toml"
SOCKET_DROP_IN: Final = "/etc/systemd/system/dockershim.socket.d/60-migrate.conf"
FILES: Final = {
    FLAGS_ENV: 'KUBELET_KUBEADM_ARGS="--pod-infra-container-image=registry.k8s.io/pause:3.10"\n',
    CONFIG: "kind: KubeletConfiguration\n# the runtime\ncontainerRuntimeEndpoint: unix:///var/run/cri-dockerd.sock\n",
    INSTANCE: 'containerRuntimeEndpoint: "unix:///run/cri-dockerd.sock"\n',
    CRICTL: "runtime-endpoint: unix:///var/run/cri-dockerd.sock\ntimeout: 10 # s\n",
}
CRI_DOCKERD: Final = ("/usr/bin/cri-dockerd", "--container-runtime-endpoint", "fd://", "--network-plugin=cni")
CREATED: Final = 10**18
PODS: Final = Pods(
    CREATED + 10**14,
    {f"{number:064x}": Pod(f"default/web-{number}", f"uid-{number}", 0, (f"10.0.0.{number}",)) for number in (1, 2)},
    {f"c{number:063x}": Container("main", f"{number:064x}", 0, CREATED, runs=True, hash="abc") for number in (1, 2)},
)


class Silent(Report):
    """Prints failures alone, as to print takes half of the time."""

    def print(self, text: Text) -> None:
        pass


@dataclass(slots=True)
class Node:
    """``units`` are [enabled, state] by name. ``ours`` changes what dockershim reports, ``theirs`` what the other does.

    ``fails`` is a part of the commands that fail. ``watch`` gets a copy of the node before each change.
    """

    disk: MemoryDisk = field(default_factory=MemoryDisk)
    units: dict[str, list[str]] = field(default_factory=dict)
    command: Sequence[str] = ("/usr/bin/dockershim", "serve")
    old_words: Sequence[str] = CRI_DOCKERD
    group: str = "docker"
    pods: Pods = PODS
    ours: Callable[[Pods], Pods] = lambda pods: pods
    theirs: Callable[[Pods], Pods] = lambda pods: pods
    fails: str = "nothing fails"
    annotation: str = ""
    not_ready: str = ""
    #: Why the kubelet is not Ready with dockershim.
    not_ready_with_ours: str = ""
    readable: bool = True
    losses: Sequence[str] = ()
    ran: list[str] = field(default_factory=list)
    watch: Callable[[Node], None] | None = None

    @classmethod
    def made(cls, **more: Any) -> Self:
        """A node of kubeadm with cri-dockerd, as their packages make it, where dockershim is installed."""
        node = cls(**more)
        for path, content in FILES.items():
            node.disk.put(path, content.encode())
        for number in (1, 2):
            node.disk.put(f"{OLD_ROOT}/sandbox/{number:064x}", b"{}", 0o600)
        node.disk.put("/etc/systemd/system/kubelet.service", b"")
        node.disk.folders |= {ROOT, "/run"}
        node.units = {
            OLD: ["enabled", "active"],
            OLD_SOCKET: ["enabled", "active"],
            UNIT: ["disabled", "inactive"],
            SOCKET_UNIT: ["disabled", "inactive"],
            KUBELET_UNIT: ["enabled", "active"],
        }
        return node

    def copied(self) -> Node:
        units = {name: list(states) for name, states in self.units.items()}
        return replace(self, disk=self.disk.copied(), units=units, ran=[], watch=None)

    def run(
        self, *, apply: bool = False, back: bool = False, keep_socket: bool = False, quiet: bool = False
    ) -> tuple[int, str]:
        """Call the command; its exit code, and what it printed."""
        out = io.StringIO()
        self.disk.change = self._change
        machine = Machine(
            root=Path(ROOT),
            disk=self.disk,
            spawn=self.spawn,
            facts=self.facts,
            pods=self.reported,
            node=self.node,
            wait_until_ready=self.wait_until_ready,
            losses=lambda: self.losses,
            check_startable=self.check_startable,
            unpin=lambda: None,
        )
        report = Silent(out, out) if quiet else Report(out, out)
        code = Move(machine, report).run(apply=apply, back=back, keep_socket=keep_socket)
        return code, out.getvalue()

    def _change(self) -> None:
        assert not (self.runs(OLD) and self.runs(UNIT)), "two servers manage the same pods"
        if self.watch is not None:
            self.watch(self.copied())

    def state(self) -> dict[str, object]:
        """All that the command may change."""
        return {**self.disk.files, "folders": set(self.disk.folders), "units": self.units}

    def side(self) -> dict[str, object]:
        """The same without the journal."""
        journal = f"{ROOT}/migrate"
        state = {path: value for path, value in self.state().items() if not path.startswith(journal)}
        return state | {"folders": {one for one in self.disk.folders if not one.startswith(journal)}}

    def runs(self, unit: str) -> bool:
        return self.units[unit][1] == "active"

    # -- What programs do.

    def spawn(self, words: Sequence[str]) -> None:
        line = " ".join(words)
        self.ran.append(line)
        if self.fails in line:
            raise ChangeError(f"`{line}` failed")
        program, verb, *names = words
        assert program == "systemctl"
        for name in names:
            self._change()
            match verb:
                case "enable" | "disable":
                    self.units[name][0] = f"{verb}d"
                case "start" | "stop":
                    self.units[name][1] = "active" if verb == "start" else "inactive"
                case _:
                    raise AssertionError(words)
        assert names or verb == "daemon-reload"

    # -- What is seen.

    def settings(self) -> dict[str, Any]:
        found = self.disk.files.get(SETTINGS)
        return tomllib.loads(found.content.decode()) if found else {}

    def endpoint(self) -> str:
        """Where dockershim serves."""
        flags = flag(self.command, "container-runtime-endpoint")
        if flags == "fd://":
            found = self.disk.files.get(SOCKET_DROP_IN)
            lines = found.content.decode().splitlines() if found else ["ListenStream=/run/dockershim.sock"]
            return f"unix://{[line for line in lines if line.startswith('ListenStream=/')][-1].partition('=')[2]}"
        return flags or self.settings().get("container_runtime_endpoint", "unix:///run/dockershim.sock")

    def kubelets_endpoint(self) -> str:
        text = self.disk.files[CONFIG].content.decode()
        return text.rpartition("containerRuntimeEndpoint: ")[2].strip()

    def reported(self, endpoint: str) -> Pods:
        if self.runs(OLD) and socket_path(endpoint) == OLD_PATH:
            return self.theirs(self.pods)
        if self.runs(UNIT) and socket_path(endpoint) == socket_path(self.endpoint()):
            return self.ours(self.pods)
        raise ChangeError(f"{endpoint}: the pods cannot be read: no such file")

    def node(self) -> ready.Node:
        if not self.readable:
            raise ready.Unreadable("no API server")
        return ready.Node("a", ready=not self.not_ready, message=self.not_ready, socket=self.annotation)

    def wait_until_ready(self) -> str:
        assert self.runs(KUBELET_UNIT)
        if problem := self.not_ready or (self.runs(UNIT) and self.not_ready_with_ours):
            raise ChangeError(f"the kubelet is not Ready after 120 s: {problem}")
        self.reported(self.kubelets_endpoint())
        return "Node a is Ready"

    def check_startable(self, names: Sequence[str]) -> None:
        if missing := [name for name in names if name not in self.units]:
            raise ChangeError(f"{missing[0]}: does not exist, so cri-dockerd cannot be started")

    def facts(self) -> Facts:
        more: dict[str, dict[str, Any]] = {
            OLD: {"pid": 1, "triggered_by": [OLD_SOCKET], "needed_by": frozenset({"multi-user.target"})},
            OLD_SOCKET: {"listens": [OLD_PATH], "group": self.group, "needed_by": frozenset({OLD, "sockets.target"})},
            UNIT: {"command": self.command},
            SOCKET_UNIT: {"listens": ["/run/dockershim.sock"]},
            KUBELET_UNIT: {
                "pid": 2,
                "files": ["/etc/systemd/system/kubelet.service"],
                "environment_files": [FLAGS_ENV, "/etc/default/kubelet"],
            },
        }
        units = {
            name: Unit(name, enabled=enabled, state=state, **more[name])
            for name, (enabled, state) in self.units.items()
        }
        words = {OLD: self.old_words, KUBELET_UNIT: ["/usr/bin/kubelet", f"--config={CONFIG}"]}

        def read(path: str) -> bytes | None:
            found = self.disk.read(path)
            return None if found is None else found.content

        return Facts(load({}, {}), read, units, words)
