"""The plan of a move from cri-dockerd: its steps, each with what undoes it. Pure.

The kubelet is stopped while the pods change hands, so that it does nothing on what it sees half-way, and both servers
can be compared exactly. No step touches the engine or a container. The way back is the same list from its end.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from dockershim.changes.steps import Call, Command, Refused, Run, Step, write_file
from dockershim.doctor import kubelet
from dockershim.doctor.server import UNIT
from dockershim.doctor.units import KUBELET_UNIT, SOCKET_UNIT, Unit
from dockershim.migrate.endpoints import flag, replace_endpoint, socket_path
from dockershim.migrate.facts import OLD_UNITS, Facts
from dockershim.server import cri_dockerd
from dockershim.server.config import OPTIONS, drop_in

SETTINGS: Final = "60-migrate.toml"
SOCKET_DROP_IN: Final = f"/etc/systemd/system/{SOCKET_UNIT}.d/60-migrate.conf"
#: kubeadm's, of which it makes the kubelet's configuration again in an upgrade.
INSTANCE: Final = Path("/var/lib/kubelet/instance-config.yaml")
#: Where files are an administrator's: those elsewhere are a package's, whose next version would replace them.
_EDITABLE: Final = ("/etc/", "/var/", "/run/", "/opt/", "/usr/local/")
_ENDPOINT_FLAG: Final = "container-runtime-endpoint"
#: Options that come from other things than the flag.
_NOT_COPIED: Final = ("container_runtime_endpoint", "adopt_from")
_BY_HAND: Final = "or move the node by hand, as docs/migrating.md describes"

#: Functions that the steps call, by name.
BEGIN: Final = "begin with a Ready kubelet"
NOTE: Final = "note the pods"
HAND_OVER: Final = "hand over the checkpoints"
COMPARE: Final = "compare the pods"
WAIT: Final = "wait for the kubelet"
OPEN: Final = "keep the way back open"


@dataclass(frozen=True, slots=True)
class Plan:
    """``old`` and ``new`` are the endpoints of the two servers, ``notes`` what is left to the operator."""

    steps: tuple[Step, ...]
    old: str
    new: str
    notes: tuple[str, ...] = ()


def make_plan(facts: Facts, *, keep_socket: bool) -> Plan:
    """The plan for a node. Raises Refused, and ChangeError for a file that cannot be changed."""
    return _Planner(facts, keep_socket).plan()


@dataclass(slots=True)
class _Planner:
    facts: Facts
    keep_socket: bool
    notes: list[str] = field(default_factory=list)

    def plan(self) -> Plan:
        service = self._old_service()
        flags = self._flags(service)
        sockets = [self.facts.units[name] for name in service.triggered_by if name in self.facts.units]
        path = self._old_path(service, sockets, flags)
        self._check_ours(service)
        old, ours = f"unix://{path}", self._our_endpoint()
        if socket_path(ours) == path:
            self.keep_socket = True
        new = old if self.keep_socket else ours
        stopped = [*(socket for socket in sockets if socket.is_active), service]
        self._check_needed(stopped)
        root = Path(flags.get("adopt_from", cri_dockerd.ROOT))
        steps: list[Step] = [*self._settings(flags, root, old), *self._socket_drop_in(path, sockets)]
        runs = KUBELET_UNIT in self.facts.units and self.facts.units[KUBELET_UNIT].is_active
        if runs:
            steps.append(Call(name=BEGIN, arguments=(old,), reason="a failure afterwards is one of the move"))
            reason = "it leaves the pods alone while they change hands"
            steps.append(_systemctl("stop", "start", [KUBELET_UNIT], reason))
        elif KUBELET_UNIT in self.facts.units:
            self.notes.append(f"{KUBELET_UNIT} does not run, and is not started")
        steps.append(Call(name=NOTE, arguments=(old,), reason="to compare them afterwards"))
        if not self.keep_socket:
            steps += self._kubelet(path, old, new, runs=runs)
            steps += self._crictl(path, new)
        steps += self._switch(stopped, root)
        steps.append(Call(name=COMPARE, arguments=(new,), reason="each pod and container has to be the same"))
        if runs:
            steps.append(_systemctl("start", "stop", [KUBELET_UNIT], f"it finds dockershim on {new}"))
            reason = "it has to be Ready, and no container restarted"
            steps.append(Call(name=WAIT, arguments=(new,), reason=reason))
        names = tuple(unit.name for unit in stopped)
        steps.append(Call(name=OPEN, arguments=names, reason="migrate --back needs the units of cri-dockerd"))
        return Plan(tuple(steps), old, new, tuple(self.notes))

    # -- cri-dockerd.

    def _old_service(self) -> Unit:
        active = [unit for name in OLD_UNITS if (unit := self.facts.units.get(name)) is not None and unit.is_active]
        if not active:
            raise Refused(
                f"cri-dockerd does not run: neither {' nor '.join(OLD_UNITS)} is active. Start the one that serves "
                "this node; dockershim setup is for a node that never had cri-dockerd"
            )
        if len(active) > 1:
            names = " and ".join(unit.name for unit in active)
            raise Refused(f"{names} are both active; stop the one that the kubelet does not use")
        return active[0]

    def _flags(self, service: Unit) -> dict[str, str]:
        """The options of dockershim that cri-dockerd's flags set, as text."""
        words = self.facts.words.get(service.name, ())
        if not words:
            raise Refused(f"{service.name}: the command line of its process {service.pid} cannot be read; restart it")
        if not cri_dockerd.is_name(words[0]):
            if any(map(cri_dockerd.is_name, words)):
                raise Refused(f"{service.name} runs dockershim under the name {cri_dockerd.NAME}; it has moved already")
            raise Refused(
                f"{service.name}: its process {service.pid} is {words[0]}, not {cri_dockerd.NAME}; let the unit start "
                f"{cri_dockerd.NAME} itself, {_BY_HAND}"
            )
        try:
            flags = cri_dockerd.command(words[1:])
        except cri_dockerd.Refused as error:
            problem = f"{error}, which cri-dockerd {cri_dockerd.VERSION} does not take"
            raise Refused(f"{service.name}: {problem}; remove the flag, {_BY_HAND}") from error
        if isinstance(flags, str):
            raise Refused(f"{service.name}: its flags print something and do not serve; fix the unit")
        if flags.get("network_plugin") == "kubenet":
            raise Refused(
                f"{service.name}: --network-plugin=kubenet has made rules and traffic shaping of its own for the pods, "
                "which nothing else removes; drain this node instead"
            )
        return dict(flags)

    def _old_path(self, service: Unit, sockets: Sequence[Unit], flags: dict[str, str]) -> str:
        """Where cri-dockerd serves, as ``socket_path`` gives it."""
        endpoint = flags.get("container_runtime_endpoint", cri_dockerd.ENDPOINT)
        if not endpoint.startswith("fd://"):
            if path := socket_path(endpoint):
                return path
            raise Refused(f"{service.name}: --{_ENDPOINT_FLAG}={endpoint} is not a unix socket; {_BY_HAND[3:]}")
        paths = sorted({socket_path(one) for socket in sockets for one in socket.listens} - {""})
        if len(paths) != 1:
            found = ", ".join(paths) or "none"
            raise Refused(
                f"{service.name}: takes its socket from systemd, which must listen on one path for it, and not on: "
                f"{found}; fix its socket unit, {_BY_HAND}"
            )
        return paths[0]

    def _check_needed(self, stopped: Sequence[Unit]) -> None:
        """A unit that needs cri-dockerd would start it again, next to ours."""
        names = {unit.name for unit in stopped}
        for unit in stopped:
            others = sorted(one for one in unit.needed_by if one not in names and not one.endswith(".target"))
            if others:
                raise Refused(
                    f"{', '.join(others)}: starts {unit.name} with itself; remove it from Wants=, Requires= and "
                    "BindsTo= of that unit, then run the command again"
                )

    # -- dockershim.

    def _check_ours(self, service: Unit) -> None:
        unit = self.facts.units.get(UNIT)
        if unit is None:
            raise Refused(f"{UNIT} is not installed; install the package, or the units of deploy/ as the README says")
        if unit.enabled.startswith("masked"):
            raise Refused(f"{UNIT} is masked; run: systemctl unmask {UNIT}")
        active = [name for name in (UNIT, SOCKET_UNIT) if name in self.facts.units and self.facts.units[name].is_active]
        if active:
            names = " ".join(active)
            raise Refused(f"{names}: active next to {service.name}; run: systemctl disable --now {names}")

    @property
    def _takes_socket(self) -> bool:
        """Whether our unit takes its socket from systemd."""
        endpoint = flag(self.facts.units[UNIT].command, _ENDPOINT_FLAG)
        return endpoint.startswith("fd://") and SOCKET_UNIT in self.facts.units

    @property
    def _our_root(self) -> Path:
        """Where our server keeps its checkpoints: a flag of the unit wins over the configuration."""
        return Path(flag(self.facts.units[UNIT].command, "root-directory") or self.facts.config.root_directory)

    def _our_endpoint(self) -> str:
        if self._takes_socket:
            paths = [one for one in self.facts.units[SOCKET_UNIT].listens if one.startswith("/")]
            if len(paths) != 1:
                found = ", ".join(self.facts.units[SOCKET_UNIT].listens) or "none"
                raise Refused(f"{SOCKET_UNIT}: must listen on one path, and not on: {found}; fix its ListenStream=")
            return f"unix://{paths[0]}"
        endpoint = flag(self.facts.units[UNIT].command, _ENDPOINT_FLAG) or self.facts.config.container_runtime_endpoint
        if self.keep_socket and flag(self.facts.units[UNIT].command, _ENDPOINT_FLAG):
            raise Refused(
                f"--keep-socket: {UNIT} has the flag --{_ENDPOINT_FLAG}={endpoint}, which wins over the configuration; "
                "remove it from the unit"
            )
        if not socket_path(endpoint):
            raise Refused(f"{UNIT}: serves on {endpoint}, which is not a unix socket at a path; set --{_ENDPOINT_FLAG}")
        return endpoint

    def _settings(self, flags: dict[str, str], root: Path, old: str) -> Iterator[Step]:
        config, path = self.facts.config, f"{self.facts.settings_folder}/{SETTINGS}"
        values: dict[str, object] = {}
        for option in OPTIONS:
            if option.key not in flags or not option.effective or option.key in _NOT_COPIED:
                continue
            try:
                values[option.key] = option.read(flags[option.key])
            except ValueError as error:
                raise Refused(f"cri-dockerd's {option.key} = {flags[option.key]!r}: {error}; {_BY_HAND[3:]}") from error
        if root != self._our_root:
            values["adopt_from"] = tuple(dict.fromkeys((*config.adopt_from, root)))
        if self.keep_socket:
            values["container_runtime_endpoint"] = old
        try:
            content = drop_in(self.facts.read(path), values, "migrate")
        except ValueError as error:
            raise Refused(f"{path}: is not valid TOML: {error}; fix or remove it") from error
        yield from write_file(path, self.facts.read(path), content, "cri-dockerd's flags, and where its state is")

    def _socket_drop_in(self, path: str, sockets: Sequence[Unit]) -> Iterator[Step]:
        group = next((socket.group for socket in sockets if path in map(socket_path, socket.listens)), "")
        if not self.keep_socket:
            return
        if not self._takes_socket:
            if group and group != "root":
                self.notes.append(f"the group {group} had access to {path}, which is root's from now on")
            return
        lines = ["# Written by dockershim migrate.", "[Socket]", "ListenStream=", f"ListenStream={path}"]
        if group:
            lines.append(f"SocketGroup={group}")
        content = ("\n".join(lines) + "\n").encode()
        again = (_RELOAD,)
        before = self.facts.read(SOCKET_DROP_IN)
        yield from write_file(SOCKET_DROP_IN, before, content, "the kubelet keeps its socket", then=again, undone=again)

    # -- Those who call the server.

    def _kubelet(self, path: str, old: str, new: str, *, runs: bool) -> Iterator[Step]:
        """Each file that sets the kubelet's endpoint, with the new one."""
        unit = self.facts.units.get(KUBELET_UNIT, Unit(KUBELET_UNIT))
        words = self.facts.words.get(KUBELET_UNIT, ())
        configuration = flag(words, "config") or str(kubelet.CONFIGURATION)
        flag_files = (*unit.environment_files, *unit.files, *map(str, kubelet.FLAG_FILES))
        changed = set()
        for name in dict.fromkeys((*flag_files, configuration, str(kubelet.CONFIGURATION), str(INSTANCE))):
            before = self.facts.read(name)
            if before is None:
                continue
            text = before.decode(errors="surrogateescape")
            after, value = replace_endpoint(text, path, new)
            if not value:
                continue
            if not name.startswith(_EDITABLE):
                raise Refused(f"{name}: sets the kubelet's endpoint, and is a package's file; use --keep-socket")
            changed.add(name)
            again = (_RELOAD,) if name in unit.files else ()
            yield from write_file(
                name,
                before,
                after.encode(errors="surrogateescape"),
                "the kubelet's endpoint",
                then=again,
                undone=again,
                replaced=(value, new),
            )
        if runs:
            self._check_kubelet(words, path, changed & set(flag_files), configuration in changed)

    def _check_kubelet(self, words: Sequence[str], path: str, flags: set[str], configured: bool) -> None:
        """The kubelet's endpoint must be the old one, and be in a file that is changed: a flag wins over a key."""
        endpoint = flag(words, _ENDPOINT_FLAG)
        if endpoint and socket_path(endpoint) != path:
            raise Refused(f"{KUBELET_UNIT}: uses {endpoint}, which cri-dockerd does not serve; nothing has to be moved")
        if not (flags if endpoint else configured):
            raise Refused(
                f"{KUBELET_UNIT}: none of its files sets {path} as its endpoint, so it cannot be changed; "
                "use --keep-socket"
            )

    def _crictl(self, path: str, new: str) -> Iterator[Step]:
        name = str(kubelet.CRICTL)
        before = self.facts.read(name) or b""
        after, value = replace_endpoint(before.decode(errors="surrogateescape"), path, new)
        if value:
            content = after.encode(errors="surrogateescape")
            yield from write_file(name, before, content, "crictl follows", replaced=(value, new))

    # -- The switch.

    def _switch(self, stopped: Sequence[Unit], root: Path) -> Iterator[Step]:
        names = [unit.name for unit in stopped]
        if enabled := [unit.name for unit in stopped if unit.enabled == "enabled"]:
            yield _systemctl("disable", "enable", enabled, "one of the two servers starts at boot")
        yield _systemctl("stop", "start", names, "pods go on without it")
        if root != self._our_root:
            reason = "dockershim reads those of cri-dockerd where they are; migrate --back moves ours to them"
            folders = (f"{self._our_root}/sandbox", f"{root}/sandbox")
            yield Call(name=HAND_OVER, arguments=folders, reason=reason)
        ours = [SOCKET_UNIT] if self._takes_socket else []
        ours.append(UNIT)
        if disabled := [name for name in ours if self.facts.units[name].enabled == "disabled"]:
            yield _systemctl("enable", "disable", disabled, "dockershim starts at boot")
        yield _systemctl("start", "stop", ours, "dockershim takes the pods over")


_RELOAD: Final = Command(words=("systemctl", "daemon-reload"), reason="systemd reads its files again")


def _systemctl(verb: str, back: str, units: Sequence[str], reason: str) -> Run:
    undo = Command(words=("systemctl", back, *units), reason="as before")
    return Run(command=Command(words=("systemctl", verb, *units), reason=reason), undo=(undo,))
