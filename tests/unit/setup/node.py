"""A node in a folder: files, an engine that reads daemon.json, systemd's units, modules, mounts.

Doctor's own checks look at it. The program that changes it can be killed before each change.
"""

from __future__ import annotations

import io
import ipaddress
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from dockershim.changes.disk import ChangeError
from dockershim.changes.journal import Entry
from dockershim.changes.report import NOTHING
from dockershim.common.mountinfo import Mount
from dockershim.doctor import daemon, engine, kubelet, network, server
from dockershim.doctor import node as doctor_node
from dockershim.doctor.findings import Finding, without_consequences
from dockershim.doctor.units import KUBELET_UNIT, SOCKET_UNIT, Unit
from dockershim.errors import Unavailable
from dockershim.server.config import Config, load
from dockershim.setup.command import Machine, run
from dockershim.setup.facts import Facts
from dockershim.setup.plan import KEEPS_CONTAINERS, NO_CONTAINER, Plan, Wishes
from dockershim.setup.report import Report
from tests.unit.changes.killable import KillableDisk
from tests.unit.translate.kubelet import ENGINE_28

DOCKER = "docker.service"
DAEMON_JSON = "/etc/docker/daemon.json"
#: With a name that is none, an odd order and indentation.
SETTINGS = b'{\n    "storage-driver": "overlay2",\n    "features": {"time-namespaces": false},\n    "debug": false\n}\n'
KUBELET = b"[Service]\nExecStart=/usr/bin/kubelet \\\n  --config=/var/lib/kubelet/config.yaml\n"
CRICTL = b"# of the operator\nruntime-endpoint: unix:///run/containerd/containerd.sock\ntimeout: 10\n"
PLUGINS = ("bridge", "host-local", "portmap", "firewall")
IP_FORWARD = "/proc/sys/net/ipv4/ip_forward"
BRIDGE_CALLS = "/proc/sys/net/bridge/bridge-nf-call-iptables"


class Silent(Report):
    """Prints failures alone, as to print takes most of the time."""

    def line(self, text: str, style: str = "") -> None:
        pass

    def plan(self, plan: Plan, interrupted: Sequence[Entry], read: Callable[[str], bytes | None]) -> None:
        if not plan.steps and not interrupted:
            self.failure(NOTHING)


@dataclass(slots=True)
class Node:
    """``engine`` is the configuration with which the engine runs; ``lost`` is whether its containers were stopped."""

    root: Path
    config: Config = field(default_factory=lambda: load({}, {}))
    running: int = 1
    engine: dict[str, Any] = field(default_factory=dict)
    daemon: daemon.Daemon | None = field(default_factory=lambda: daemon.Daemon("/usr/sbin/dockerd", unit=DOCKER))
    features: Any = ENGINE_28
    swarm: bool = False
    authorization: bool = False
    findings: Sequence[Finding] = ()
    units: dict[str, list[str]] = field(default_factory=dict)
    unit: str = server.UNIT
    socket: str = SOCKET_UNIT
    shared: bool = False
    lost: bool = False
    fails: str = ""
    ran: list[str] = field(default_factory=list)
    users: Sequence[str] = ()
    #: Called before each program that is run.
    meanwhile: Callable[[], None] = lambda: None
    disk: KillableDisk = field(init=False)

    def __post_init__(self) -> None:
        self.disk = KillableDisk(self.root)
        self.units |= {name: ["disabled", "inactive"] for name in (self.unit, self.socket, KUBELET_UNIT)}
        self.put(IP_FORWARD, b"0\n")
        self.put(DAEMON_JSON, SETTINGS, mode=0o600)
        self.put("/etc/systemd/system/kubelet.service", KUBELET)
        self.put("/etc/crictl.yaml", CRICTL)
        self.engine = json.loads(SETTINGS)
        for name in PLUGINS:
            self.put(f"/usr/lib/cni/{name}", b"", mode=0o755)
        for folder in ("etc/sysctl.d", "etc/modules-load.d", "etc/dockershim", "var/lib"):
            (self.root / folder).mkdir(parents=True)

    def put(self, path: str, content: bytes, mode: int = 0o644) -> None:
        place = self.disk.at(path)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)
        place.chmod(mode)

    def get(self, path: str) -> bytes | None:
        place = self.disk.at(path)
        return place.read_bytes() if place.exists() else None

    def setup(
        self, *, apply: bool = False, undo: bool = False, wishes: Wishes | None = None, quiet: bool = False
    ) -> tuple[int, str]:
        """Run the command; its exit code, and what it printed."""
        out = io.StringIO()
        report = Silent(out, out) if quiet else Report(out, out)
        machine = Machine(
            root=Path("/var/lib/dockershim"),
            facts=self.facts,
            disk=self.disk,
            spawn=self.spawn,
            containers_of=lambda _: self.users,
            conditions={
                KEEPS_CONTAINERS: lambda: bool(self.engine.get("live-restore")) or not self.running,
                NO_CONTAINER: lambda: not self.running,
            },
        )
        code = run(machine, report, wishes=wishes or Wishes("bridge"), apply=apply, undo=undo)
        return code, out.getvalue()

    def state(self) -> dict[str, object]:
        """All that setup may change: files with their modes, units, mounts, and what the engine has read."""
        found: dict[str, object] = {
            str(path.relative_to(self.root)): (path.stat().st_mode, path.read_bytes() if path.is_file() else b"")
            for path in self.root.rglob("*")
        }
        return found | {"units": json.dumps(self.units), "shared": self.shared, "engine": dict(self.engine)}

    # -- What programs do.

    def spawn(self, words: Sequence[str]) -> None:
        self.meanwhile()
        self.disk.change()
        line = " ".join(words)
        self.ran.append(line)
        if self.fails and self.fails in line:
            raise ChangeError(f"`{line}` failed")
        self._do(list(words))

    def _do(self, words: list[str]) -> None:
        match words:
            case ["systemctl", "reload", "docker.service"]:
                self.engine |= {key: value for key, value in self._settings().items() if key != "log-opts"}
            case ["systemctl", "restart", "docker.service"]:
                before, self.engine = self.engine, self._settings()
                if not (before.get("live-restore") and self.engine.get("live-restore")) and self.running:
                    self.lost = True
            case [program, "--validate", "--config-file", path] if program.endswith("dockerd"):
                json.loads(Path(path).read_bytes())
            case ["systemctl", "enable" | "disable" as verb, *names]:
                for name in names:
                    self.units[name][0] = f"{verb}d"
            case ["systemctl", "start" | "stop" as verb, *names]:
                for name in names:
                    self.units[name][1] = "active" if verb == "start" else "inactive"
            case ["systemctl", "try-restart", _] | ["systemctl", "daemon-reload"]:
                pass
            case ["modprobe", "br_netfilter"]:
                self.put(BRIDGE_CALLS, b"1\n")
            case ["modprobe", "-r", "br_netfilter"]:
                self.disk.at(BRIDGE_CALLS).unlink(missing_ok=True)
                if self.disk.at(BRIDGE_CALLS).parent.is_dir():
                    self.disk.at(BRIDGE_CALLS).parent.rmdir()
            case ["mount", kind, "/"]:
                self.shared = kind == "--make-rshared"
            case _:
                raise AssertionError(words)

    def _settings(self) -> dict[str, Any]:
        return dict(json.loads(self.get(DAEMON_JSON) or b"{}"))

    # -- What doctor and setup see.

    def facts(self) -> Facts:
        runtimes = {name: one["path"] for name, one in self.engine.get("runtimes", {}).items()}
        answer = engine.EngineAnswer(
            features=replace(self.features, live_restore=bool(self.engine.get("live-restore")))
            if self.features is not None
            else None,
            failure=None if self.features is not None else Unavailable("cannot connect to the engine"),
            runtimes=runtimes,
            running=self.running,
            log_driver=self.engine.get("log-driver", "json-file"),
            swarm=self.swarm,
            authorization=self.authorization,
        )
        config = self._config()
        here = replace(config, cni_conf_dir=self.disk.at(str(config.cni_conf_dir)))
        found = network.choose(here)
        folders = [self.disk.at(str(folder)) for folder in config.cni_bin_dir]
        unit_folders = (self.disk.at("/etc/systemd/system"),)
        seen = kubelet.read_kubelet(self.disk.at("/var/lib/kubelet/config.yaml"), (), unit_folders)
        command = kubelet.read_command(unit_folders)
        root = Mount(1, "8:1", "/", "/", ("shared:1",) if self.shared else (), "ext4", "/dev/sda1", ())
        endpoint = config.container_runtime_endpoint
        enabled, active = self.units.get(self.unit, ("", "inactive"))
        findings = [
            *engine.check_engine(answer, config.docker_endpoint, ()),
            *daemon.check_logs(answer.log_driver, self.daemon, (self.get(DAEMON_JSON) or b"").decode(errors="replace")),
            *engine.check_runtimes(answer.runtimes, config.oci_runtime, lambda _: True),
            *server.check_unit(Unit(self.unit, enabled=enabled)),
            *(() if active == "active" else server.check_server(server.ServerAnswer(failure="no such file"), endpoint)),
            *kubelet.check_kubelet(seen, endpoint, None),
            *kubelet.check_crictl((self.get("/etc/crictl.yaml") or b"").decode(), endpoint, installed=True),
            *network.check_configuration(found, here.cni_conf_dir),
            *network.check_plugins(found, folders),
            *network.check_sysctls(self.root / "proc/sys", ipv6=False),
            *doctor_node.check_propagation([root], [Path("/")]),
            *self.findings,
        ]
        conflists = sorted(here.cni_conf_dir.glob("*.conflist")) if here.cni_conf_dir.is_dir() else []
        return Facts(
            findings=without_consequences(findings),
            config=config,
            endpoint=endpoint,
            read=self._read,
            engine=answer,
            daemon=self.daemon,
            units={name: (states[0], states[1]) for name, states in self.units.items()},
            unit=self.unit,
            socket=self.socket,
            kubelet_command=command.value if command else "",
            plugins=frozenset(f"/usr/lib/cni/{path.name}" for path in self.disk.at("/usr/lib/cni").iterdir()),
            network=f"{config.cni_conf_dir}/{conflists[0].name}" if conflists else "",
            routes=(ipaddress.IPv4Network("0.0.0.0/0"), ipaddress.IPv4Network("10.88.0.0/16")),
            mounts=(root,),
            modules=frozenset({"br_netfilter"}),
            packaged_runc=False,
            runc=b"\x7fELF\0",
        )

    def _read(self, path: str) -> bytes | None:
        found = self.disk.read(path)
        return None if found is None else found.content

    def _config(self) -> Config:
        """What the server would run with: its drop-in, by the paths of this node."""
        drop_in = self.disk.at("/etc/dockershim/config.toml.d/50-setup.toml")
        return load({}, {}, drop_in) if drop_in.exists() else self.config
