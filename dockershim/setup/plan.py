"""The plan: which steps fix what doctor complains about, and what is left to the operator. Pure.

Nothing is changed of which doctor does not complain. The one exception is dockershim-runc, which is registered with the
engine so that early networks and user namespaces can be turned on; as long as no option names it, no container uses it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from dockershim.changes.disk import ChangeError
from dockershim.changes.steps import NEW_CONTENT, Command, Refused, Run, SetValue, Step, write_file
from dockershim.common.mountinfo import Mount
from dockershim.doctor.findings import (
    CNI_CONFIGURATION,
    CNI_PLUGINS,
    NETWORK_READY,
    Finding,
    Level,
    sysctl_of,
    warn,
)
from dockershim.doctor.network import DEBIANS_PLUGINS, MODULE
from dockershim.doctor.server import SERVER
from dockershim.doctor.state import TWO_SERVERS
from dockershim.doctor.units import KUBELET_UNIT
from dockershim.server.config import drop_in
from dockershim.setup import daemon_json, files
from dockershim.setup.facts import PACKAGED_RUNC, Facts

#: systemd reads files of this folder in the order of their names, and 99-sysctl.conf is /etc/sysctl.conf.
SYSCTLS: Final = "/etc/sysctl.d/99-zz-dockershim.conf"
MODULES: Final = "/etc/modules-load.d/dockershim.conf"
CONFLIST: Final = "10-dockershim-bridge.conflist"
SETTINGS: Final = "50-setup.toml"
CRICTL: Final = "/etc/crictl.yaml"
KUBELET_DROP_IN: Final = f"/etc/systemd/system/{KUBELET_UNIT}.d/99-dockershim.conf"
#: Where we put dockershim-runc if no package has: the engine's configuration names it, so the place must stay.
COPIED_RUNC: Final = "/usr/local/bin/dockershim-runc"
RUNTIME: Final = "dockershim-runc"

BRIDGE: Final = "bridge"
_BRIDGE_PLUGINS: Final = ("bridge", "host-local", "portmap", "firewall")
USER_NAMESPACES: Final = "user-namespaces"
EARLY_NETWORK: Final = "early-network"
FEATURES: Final = (EARLY_NETWORK, USER_NAMESPACES)
#: What each needs of the engine: the version of its API, and of Docker.
_ENGINES: Final = {USER_NAMESPACES: ((1, 44), "25"), EARLY_NETWORK: ((1, 48), "28")}
#: dockerd has --validate since Docker 23.
_VALIDATES: Final = (1, 42)

#: Conditions of commands.
KEEPS_CONTAINERS: Final = "the engine keeps its containers"
NO_CONTAINER: Final = "no container runs"
_NOT_RESTARTED: Final = "Docker is not restarted, as its containers would stop: {what} with its next restart"


@dataclass(frozen=True, slots=True)
class Wishes:
    """What the operator asked for by flags. ``network`` is ``BRIDGE`` or empty; ``features`` are of ``FEATURES``."""

    network: str = ""
    features: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Plan:
    """``found`` are doctor's complaints that the steps fix, ``left`` those that they do not; ``offers`` are lines."""

    steps: tuple[Step, ...] = ()
    found: tuple[Finding, ...] = ()
    left: tuple[Finding, ...] = ()
    offers: tuple[str, ...] = ()


def make_plan(facts: Facts, wishes: Wishes) -> Plan:
    """The plan for a node. Raises Refused, and InvalidSettings for a daemon.json that cannot be merged."""
    return _Planner(facts, wishes).plan()


@dataclass(slots=True)
class _Planner:
    facts: Facts
    wishes: Wishes
    steps: list[Step] = field(default_factory=list)
    fixed: list[Finding] = field(default_factory=list)
    more: list[Finding] = field(default_factory=list)
    settings: dict[str, object] = field(default_factory=dict)

    def plan(self) -> Plan:
        self._check_wishes()
        rules: tuple[Callable[[], None], ...] = (
            self._modules,
            self._sysctls,
            self._propagation,
            self._engine,
            self._network,
            self._features,
            self._server_settings,
            self._units,
            self._crictl,
            self._kubelet,
        )
        for rule in rules:
            try:
                rule()
            except ChangeError as error:  # a file that is none of ours to replace
                self.more.append(warn("setup", str(error), "change it as the plan would, or remove it"))
        complaints = [one for one in self.facts.findings if one.level is not Level.OK]
        said = {one.title for one in self.more}
        left = [one for one in complaints if one not in self.fixed and one.title not in said and not self._follows(one)]
        return Plan(tuple(self.steps), tuple(self.fixed), (*left, *self.more), tuple(self._offers()))

    def _complaints(self, *titles: str) -> list[Finding]:
        return [one for one in self.facts.findings if one.title in titles and one.level is not Level.OK]

    def _follows(self, finding: Finding) -> bool:
        """Whether it is a consequence of something that the steps fix."""
        fixed = {one.title for one in self.fixed}
        return finding.title == NETWORK_READY and bool(fixed & {CNI_CONFIGURATION, CNI_PLUGINS})

    def _write(
        self,
        path: str,
        make: Callable[[bytes | None], bytes],
        reason: str,
        *,
        mode: int = 0o644,
        check: tuple[str, ...] = (),
        then: tuple[Command, ...] = (),
        undone: tuple[Command, ...] = (),
    ) -> None:
        before = self.facts.read(path)
        self.steps += write_file(path, before, make(before), reason, mode=mode, check=check, then=then, undone=undone)

    def _check_wishes(self) -> None:
        features = self.facts.engine.features
        for name in sorted(self.wishes.features):
            api, docker = _ENGINES[name]
            if features is None:
                raise Refused(f"--with={name}: the engine does not respond; start it, then run setup again")
            if features.api < api:
                raise Refused(f"--with={name}: Docker {docker} or newer is required, this is {features.version}")
            if self._runc() is None:
                raise Refused(f"--with={name}: there is no dockershim-runc for this machine")
            daemon, runtime = self.facts.daemon, self.facts.config.oci_runtime or RUNTIME
            if runtime not in self.facts.engine.runtimes and (daemon is None or "add-runtime" in daemon.flags):
                how = "has --add-runtime as a flag" if daemon else "was not found on this machine"
                raise Refused(f"--with={name}: dockershim-runc cannot be registered, as dockerd {how}")

    # -- The kernel.

    def _modules(self) -> None:
        for finding in self._complaints("bridge netfilter"):
            if finding.fix.startswith("modprobe ") and MODULE in self.facts.modules:
                self.fixed.append(finding)
                self._write(MODULES, lambda before: files.modules(before, MODULE), finding.message)
                unload = Command(words=("modprobe", "-r", MODULE), reason="it was not loaded before", may_fail=True)
                self.steps.append(
                    Run(command=Command(words=("modprobe", MODULE), reason=finding.message), undo=(unload,))
                )

    def _sysctls(self) -> None:
        wanted: dict[str, tuple[str, str]] = {}
        for finding in self.facts.findings:
            if finding.level is not Level.OK and (found := sysctl_of(finding)) is not None:
                self.fixed.append(finding)
                wanted[found[0]] = (found[1], finding.message)
        if wanted:
            values = {name: value for name, (value, _) in wanted.items()}
            reason = "; ".join(message for _, message in wanted.values())
            self._write(SYSCTLS, lambda before: files.sysctls(before, values), reason)
        for name, (value, message) in wanted.items():
            self.steps.append(SetValue(path=f"/proc/sys/{name.replace('.', '/')}", value=value, reason=message))

    def _propagation(self) -> None:
        for finding in self._complaints("mount propagation"):
            words = tuple(finding.fix.split())
            if words[:2] != ("mount", "--make-rshared"):
                continue
            self.fixed.append(finding)
            reason = f"{finding.message}. It holds until the next boot, at which systemd shares all mounts by itself"
            self.steps.append(Run(command=Command(words=words, reason=reason), undo=tuple(self._unshared(words[2]))))

    def _unshared(self, point: str) -> Iterable[Command]:
        below = point.rstrip("/") + "/"
        for mount in _topmost(self.facts.mounts):
            if not mount.is_shared and (mount.point == point or mount.point.startswith(below)):
                kind = "slave" if any(tag.startswith("master:") for tag in mount.tags) else "private"
                yield Command(words=("mount", f"--make-{kind}", mount.point), reason="as before", may_fail=True)

    # -- The engine.

    def _engine(self) -> None:
        answer, daemon = self.facts.engine, self.facts.daemon
        if answer.features is None or daemon is None:
            return  # it does not run, as doctor says, or elsewhere
        before = self.facts.read(daemon.config_file)
        wanted, fixed = self._wanted_of_engine(before)
        if not wanted:
            return
        if wanted.runtime is not None and not self.facts.packaged_runc:
            runc = self.facts.runc
            assert runc is not None, "a runtime is wanted only if there is a program"
            self._write(COPIED_RUNC, lambda _: runc, "the program of the runtime dockershim-runc", mode=0o755)
        reload, restart = self._reload(daemon.unit), self._restart(daemon.unit)
        undone = [reload]
        if restart is not None:
            condition = KEEPS_CONTAINERS if daemon_json.live_restore(before) else NO_CONTAINER
            undone.append(_restart(restart, "it keeps settings that are removed", condition, "they are removed"))
        then = [reload]
        if wanted.log_limits:
            if restart is not None and (wanted.live_restore or answer.features.live_restore or not answer.running):
                then.append(_restart(restart, "log-opts are not reloaded", KEEPS_CONTAINERS, "the log limits begin"))
            else:
                found = f"the limits begin when Docker restarts, which would stop {answer.running} containers"
                self.more.append(warn("container logs", found, "restart Docker when the node is drained"))
        program = daemon.program if answer.features.api >= _VALIDATES else ""
        count = len(self.steps)
        self._write(
            daemon.config_file,
            lambda content: daemon_json.merge(content, wanted, daemon.config_file),
            "; ".join([*(one.message for one in fixed), *_other_reasons(wanted, fixed)]),
            check=(program, "--validate", "--config-file", NEW_CONTENT) if program else (),
            then=tuple(then),
            undone=tuple(undone),
        )
        if len(self.steps) > count:
            self.fixed += fixed

    def _wanted_of_engine(self, configured: bytes | None) -> tuple[daemon_json.Wanted, list[Finding]]:
        """What the file lacks, and the complaints that it causes. ``configured`` is the file.

        The engine may run with more than it would start with: a reload takes no setting away that is removed.
        """
        answer = self.facts.engine
        flags = self.facts.daemon.flags if self.facts.daemon is not None else frozenset()
        restore = [] if "live-restore" in flags or answer.swarm else self._complaints("live-restore")
        runs_only = answer.features is not None and answer.features.live_restore and "live-restore" not in flags
        logs = [] if flags & {"log-opt", "log-driver"} else self._complaints("container logs")
        runtime = None if "add-runtime" in flags else self._wanted_runtime(configured)
        missing = self._complaints("OCI runtimes") if runtime and runtime[0] not in answer.runtimes else []
        return (
            daemon_json.Wanted(
                live_restore=bool(restore) or (runs_only and not daemon_json.live_restore(configured)),
                log_limits=bool(logs),
                runtime=runtime,
            ),
            [*restore, *logs, *(one for one in missing if one.level is Level.WARN)],
        )

    def _wanted_runtime(self, configured: bytes | None) -> tuple[str, str] | None:
        """The runtime that is to be registered; None if it is, or cannot be."""
        name, program = self.facts.config.oci_runtime or RUNTIME, self._runc()
        if program is None or name in daemon_json.runtimes(configured):
            return None
        if self.facts.engine.authorization and not (self.wishes.features or self.facts.config.oci_runtime):
            return None  # it would be a way around the plugin: docs/user-namespaces.md
        return name, program

    def _runc(self) -> str | None:
        if self.facts.packaged_runc:
            return PACKAGED_RUNC
        return COPIED_RUNC if self.facts.runc is not None else None

    def _reload(self, unit: str) -> Command:
        words = ("systemctl", "reload", unit) if unit else ("sh", "-c", 'kill -s HUP "$(cat /run/docker.pid)"')
        return Command(words=words, reason="the engine reads its configuration again; containers go on")

    def _restart(self, unit: str) -> tuple[str, ...] | None:
        return ("systemctl", "restart", unit) if unit else None

    # -- The network, and the server's settings.

    def _network(self) -> None:
        plugin = self.facts.config.network_plugin
        if self.wishes.network and plugin != "cni":
            raise Refused(f"--network={BRIDGE}: the server has network_plugin = {plugin}, so no CNI network is used")
        if self.wishes.network and not self.facts.network:
            self._bridge()
        for finding in self._complaints(CNI_PLUGINS):
            if finding.fix.startswith("add the directory of the plugin"):
                self.fixed.append(finding)
                self._add_plugins_folder()

    def _bridge(self) -> None:
        missing = [name for name in _BRIDGE_PLUGINS if not self._has_plugin(name, str(DEBIANS_PLUGINS))]
        if missing:
            folders = ", ".join(map(str, dict.fromkeys((*self.facts.config.cni_bin_dir, DEBIANS_PLUGINS))))
            raise Refused(
                f"--network={BRIDGE}: the CNI plugins {', '.join(missing)} are not in {folders}; install them "
                "(Debian: apt-get install containernetworking-plugins), then run setup again"
            )
        pods = files.free_range(self.facts.routes)
        if pods is None:
            where = self.facts.config.cni_conf_dir
            raise Refused(f"--network={BRIDGE}: no range of addresses is free; write a network to {where} yourself")
        self.fixed += self._complaints(CNI_CONFIGURATION)
        reason = f"a network for the pods of this node, {pods}, to which no route of the node leads"
        self._write(f"{self.facts.config.cni_conf_dir}/{CONFLIST}", lambda _: files.conflist(pods), reason)
        if not all(self._has_plugin(name) for name in _BRIDGE_PLUGINS):
            self._add_plugins_folder()

    def _has_plugin(self, name: str, *more: str) -> bool:
        folders = (*map(str, self.facts.config.cni_bin_dir), *more)
        return any(f"{folder}/{name}" in self.facts.plugins for folder in folders)

    def _add_plugins_folder(self) -> None:
        folders = dict.fromkeys((*self.facts.config.cni_bin_dir, DEBIANS_PLUGINS))
        self.settings["cni_bin_dir"] = tuple(map(str, folders))

    def _features(self) -> None:
        config = self.facts.config
        if self.wishes.features and not config.oci_runtime:
            self.settings["oci_runtime"] = RUNTIME
        if EARLY_NETWORK in self.wishes.features and not config.early_network:
            self.settings["early_network"] = True

    def _server_settings(self) -> None:
        if not self.settings:
            return
        path = f"{self.facts.settings_folder}/{SETTINGS}"
        restart = Command(
            words=("systemctl", "try-restart", self.facts.unit), reason="the server reads it at its start; pods go on"
        )
        commands = (restart,) if self.facts.unit in self.facts.units else ()

        def make(before: bytes | None) -> bytes:
            try:
                return drop_in(before, self.settings, "setup")
            except ValueError as error:
                raise ChangeError(f"{path}: is not valid TOML: {error}") from error

        self._write(path, make, f"{', '.join(self.settings)} of the server", then=commands, undone=commands)

    # -- The server and those who call it.

    def _has_other_server(self) -> bool:
        return any(TWO_SERVERS in one.message for one in self._complaints("cri-dockerd"))

    def _units(self) -> None:
        units, unit, socket = self.facts.units, self.facts.unit, self.facts.socket
        if self._has_other_server():
            return
        if unit not in units:
            if self._complaints(SERVER):
                found = f"{unit} is not installed, so the server is neither enabled nor started"
                self.more.append(warn(SERVER, found, "install the package, or the units of deploy/ as the README says"))
            return
        runs = units[unit][1] == "active"
        # A server with a socket of its own goes on with it.
        names = [unit, *([socket] if socket in units and (not runs or units[socket][1] == "active") else [])]
        disabled = tuple(name for name in names if units[name][0] == "disabled")
        if disabled:
            self.fixed += self._complaints("start at boot")
            self._systemctl("enable", "disable", disabled, "no server after a reboot")
        startable = [name for name in names if not units[name][0].startswith("masked")]
        stopped = tuple(name for name in startable if units[name][1] in ("inactive", "failed"))
        if self._complaints(SERVER) and unit in stopped:
            self.fixed += self._complaints(SERVER)
            self._systemctl("start", "stop", stopped, "no server responds")

    def _systemctl(self, verb: str, back: str, units: tuple[str, ...], reason: str) -> None:
        undo = Command(words=("systemctl", back, *units), reason="as before")
        self.steps.append(Run(command=Command(words=("systemctl", verb, *units), reason=reason), undo=(undo,)))

    def _crictl(self) -> None:
        complaints = self._complaints("crictl")
        if complaints and not self._has_other_server():
            self.fixed += complaints
            self._write(CRICTL, lambda before: files.crictl(before, self.facts.endpoint), complaints[0].message)

    def _kubelet(self) -> None:
        """Point a kubelet that has no runtime to this server. One that runs with another runtime keeps its pods."""
        state = self.facts.units.get(KUBELET_UNIT, ("", ""))[1]
        complaints = self._complaints("kubelet's endpoint")
        command = re.sub(r" --container-runtime-endpoint=\S+$", "", self.facts.kubelet_command)
        unset = all(one.level is Level.WARN for one in complaints)
        if not complaints or not command or self._has_other_server():
            return
        if state == "active" or (state != "inactive" and not unset):
            return
        self.fixed += complaints
        again = (Command(words=("systemctl", "daemon-reload"), reason="systemd reads the unit again"),)
        self._write(
            KUBELET_DROP_IN,
            lambda _: files.kubelet_drop_in(command, self.facts.endpoint),
            complaints[0].message,
            then=again,
            undone=again,
        )

    def _offers(self) -> Iterable[str]:
        features, config = self.facts.engine.features, self.facts.config
        ours = f"{config.cni_conf_dir}/{CONFLIST}"
        if self.wishes.network and self.facts.network not in ("", ours):
            yield f"--network={BRIDGE} changes nothing, as the node has a network: {self.facts.network}"
        if self._complaints(CNI_CONFIGURATION) and not self.wishes.network:
            yield f"a pod network for this node alone: dockershim setup --network={BRIDGE}"
        if features is None:
            yield "the settings of the engine, once it responds: dockershim setup"
            return
        if self._runc() is None:
            return
        if not config.oci_runtime and not self.wishes.features and features.api >= _ENGINES[USER_NAMESPACES][0]:
            yield f"users of their own for pods (hostUsers: false): dockershim setup --with={USER_NAMESPACES}"
        asked = config.early_network or EARLY_NETWORK in self.wishes.features
        if not asked and features.api >= _ENGINES[EARLY_NETWORK][0]:
            yield f"CNI plugins during the start of a pod, in 3/4 of the time: dockershim setup --with={EARLY_NETWORK}"


_WHY_RUNTIME: Final = "the runtime dockershim-runc, for user namespaces and early networks; no container uses it yet"


def _other_reasons(wanted: daemon_json.Wanted, fixed: Iterable[Finding]) -> Iterable[str]:
    """Those of which doctor does not complain."""
    if wanted.live_restore and not any(one.title == "live-restore" for one in fixed):
        yield "live-restore is on, but would be off after a restart of the engine"
    if wanted.runtime is not None:
        yield _WHY_RUNTIME


def _restart(words: tuple[str, ...], reason: str, condition: str, what: str) -> Command:
    return Command(words=words, reason=reason, needs=condition, otherwise=_NOT_RESTARTED.format(what=what))


def _topmost(mounts: Iterable[Mount]) -> Iterable[Mount]:
    """Of mounts at one point the last one, which is on top."""
    return {mount.point: mount for mount in mounts}.values()
