"""What pods need of the node's network."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import json
import os
import shlex
import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import cni
from dockershim.doctor.findings import CNI_CONFIGURATION, CNI_PLUGINS, Finding, fail, ok, sysctl_fix, warn
from dockershim.doctor.node_files import TABLE, number, text
from dockershim.server.config import Config
from dockershim.translate.network import kubenet_config

#: Has bridge-nf-call-iptables.
MODULE: Final = "br_netfilter"
DEBIANS_PLUGINS: Final = Path("/usr/lib/cni")
#: Plugins that connect pods by the node's routes and leave the FORWARD chain to others.
_ROUTED: Final = frozenset({"bridge", "ptp"})
_LISTEN: Final = "0A"  # the kernel's number of TCP_LISTEN in /proc/net/tcp


@dataclass(frozen=True, slots=True)
class PodNetwork:
    """The network that the server would choose; None with the reason in ``lack``. ``damaged`` are invalid files."""

    network: cni.NetworkList | None
    damaged: Sequence[str] = ()
    lack: str = ""


def choose(config: Config) -> PodNetwork | None:
    """What the server would choose for pods; None if they use the engine's own bridge."""
    if config.network_plugin == "docker":
        return None
    if config.network_plugin == "kubenet":
        raw = kubenet_config(["10.0.0.0/24"], mtu=config.network_plugin_mtu, hairpin_mode=config.hairpin_mode)
        return PodNetwork(cni.NetworkList.parse(raw, "kubenet"))
    network, damaged = cni.find_network(config.cni_conf_dir)
    problems = [str(error) for error in damaged]
    lack = "" if network is not None else "; ".join(problems) or f"no network configuration in {config.cni_conf_dir}"
    return PodNetwork(network, problems, lack)


def check_configuration(found: PodNetwork | None, folder: Path) -> Iterator[Finding]:
    if found is None:
        yield ok(CNI_CONFIGURATION, "not used: pods use the engine's own bridge (--network-plugin=docker)")
        return
    if found.network is None:
        yield fail(CNI_CONFIGURATION, found.lack, f"install a pod network, which writes a *.conflist file to {folder}")
        return
    for problem in found.damaged:
        yield warn(CNI_CONFIGURATION, f"ignored: {problem}", "fix or remove the file")
    network = found.network
    types = ", ".join(plugin.type for plugin in network.plugins)
    yield ok(
        CNI_CONFIGURATION, f"{network.source or 'kubenet'}: network {network.name}, {network.version}, plugins {types}"
    )


def plugins_of(network: cni.NetworkList) -> list[str]:
    """Every program that is run for a network: its plugins, and their plugins for addresses (``ipam``)."""
    types = []
    for plugin in network.plugins:
        ipam = plugin.raw.get("ipam")
        types += [plugin.type, ipam.get("type") if isinstance(ipam, dict) else None]
    # An address plugin's name comes unchecked from the file, and must not lead out of the folder.
    return list(dict.fromkeys(name for name in types if isinstance(name, str) and name and "/" not in name))


def check_plugins(found: PodNetwork | None, folders: Sequence[Path]) -> Iterator[Finding]:
    """Whether each plugin is in one of ``folders``, and can be run."""
    if found is None or found.network is None:
        return
    types = plugins_of(found.network)
    problems = [problem for name in types if (problem := _plugin_problem(name, folders)) is not None]
    yield from problems
    if not problems:
        yield ok(CNI_PLUGINS, f"{', '.join(types)} are in {', '.join(map(str, folders))}")


def _plugin_problem(name: str, folders: Sequence[Path]) -> Finding | None:
    places = [folder / name for folder in folders if (folder / name).is_file()]
    if any(os.access(place, os.X_OK) for place in places):
        return None
    if places:
        return fail(CNI_PLUGINS, f"{places[0]} is not executable", f"chmod 755 {shlex.quote(str(places[0]))}")
    if (DEBIANS_PLUGINS / name).is_file():
        edit = f"add the directory of the plugin: --cni-bin-dir={','.join(map(str, [*folders, DEBIANS_PLUGINS]))}"
    else:
        edit = f"install the plugin in {folders[0]} (Debian: apt-get install containernetworking-plugins)"
    return fail(CNI_PLUGINS, f"{name} is not in {', '.join(map(str, folders))}", edit)


def has_ipv6(found: PodNetwork | None, pod_cidr: str) -> bool:
    """Whether pods get IPv6 addresses, as far as the configuration tells."""
    raw = found.network.raw if found is not None and found.network is not None else b"null"
    return any(_is_ipv6(part) for part in (*pod_cidr.split(","), *_texts(json.loads(raw))))


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _texts(item)


def _is_ipv6(word: str) -> bool:
    try:
        # A route to everywhere is no address of a pod.
        network = ipaddress.ip_network(word.strip(), strict=False)
    except ValueError:
        return False
    return network.version == 6 and network.prefixlen > 0


def check_sysctls(sysctls: Path, *, ipv6: bool) -> Iterator[Finding]:
    """``sysctls`` is /proc/sys."""
    if number(sysctls / "net/ipv4/ip_forward") == 1:
        yield ok("IPv4 forwarding", "on")
    else:
        found = "disabled: pods can reach neither other nodes nor external addresses"
        yield fail("IPv4 forwarding", found, sysctl_fix("net.ipv4.ip_forward", 1))
    if ipv6 and number(sysctls / "net/ipv6/conf/all/forwarding") != 1:
        # No failure: the bridge plugin turns it on with the first pod.
        found = "disabled, but pods get IPv6 addresses"
        yield warn("IPv6 forwarding", found, sysctl_fix("net.ipv6.conf.all.forwarding", 1))
    elif ipv6:
        yield ok("IPv6 forwarding", "on")
    calls = number(sysctls / "net/bridge/bridge-nf-call-iptables")
    title, effect = "bridge netfilter", "Services may not work between pods on this node"
    if calls is None:
        edit = f"modprobe {MODULE} (and add {MODULE} to /etc/modules-load.d/kubernetes.conf)"
        yield warn(title, f"the module {MODULE} is not loaded: {effect}", edit)
    elif calls == 0:
        yield warn(title, f"disabled: {effect}", sysctl_fix("net.bridge.bridge-nf-call-iptables", 1))
    else:
        yield ok(title, "on")


def check_forward(rules: str | None, found: PodNetwork | None) -> Iterator[Finding]:
    """``rules`` is the output of ``iptables -S FORWARD``; None if there is no such program."""
    if rules is None or found is None or found.network is None or "-P FORWARD" not in rules:
        return
    types = [plugin.type for plugin in found.network.plugins]
    if "-P FORWARD DROP" in rules and types[0] in _ROUTED and "firewall" not in types:
        edit = f'add the plugin {{"type": "firewall"}} to {found.network.source or "the network"}'
        yield warn("FORWARD policy", "DROP, which Docker sets, and no CNI plugin accepts the pods' packets", edit)
    else:
        yield ok("FORWARD policy", "DROP" if "-P FORWARD DROP" in rules else "ACCEPT")


def check_streaming(config: Config, pid: int | None, proc: Path = Path("/proc")) -> Iterator[Finding]:
    """Whether exec, attach and port-forward can be served where they should be. ``pid`` is the server's."""
    title, flag = "streaming address", "--streaming-bind-addr"
    host, _, port = config.streaming_bind_addr.rpartition(":")
    problem = _bind_problem(host.strip("[]"), int(port))
    if problem == errno.EADDRINUSE and not _is_listener(int(port), pid, proc):
        found = f"{config.streaming_bind_addr} is in use by another program"
        yield fail(title, found, f"stop it (ss -ltnp sport = :{port} shows it), or set {flag}=127.0.0.1:0")
    elif problem not in (None, errno.EADDRINUSE):
        found = f"{config.streaming_bind_addr}: {os.strerror(problem or 0)}"
        yield fail(title, found, f"set {flag} to 127.0.0.1:0 or to an address of this node")
    elif not _is_loopback(host.strip("[]")) and config.streaming_tls_cert is None:
        found = f"{config.streaming_bind_addr} is reachable from other machines without TLS"
        yield warn(title, found, f"set {flag}=127.0.0.1:0, or --streaming-tls-cert and --streaming-tls-key")
    else:
        yield ok(title, f"{config.streaming_bind_addr}{', used by the server' if problem else ''}")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _bind_problem(host: str, port: int) -> int | None:
    """The errno of a listener at this address; None if one would work."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            return error.errno or errno.EINVAL
    return None


def _is_listener(port: int, pid: int | None, proc: Path) -> bool:
    if pid is None:
        return False
    tables = (text(proc / str(pid) / "net" / name, TABLE) or "" for name in ("tcp", "tcp6"))
    wanted = {inode for table in tables for inode in listeners(table).get(port, ())}
    return any(link == f"socket:[{inode}]" for link in _descriptors(proc / str(pid) / "fd") for inode in wanted)


def _descriptors(folder: Path) -> Iterator[str]:
    """What the open files of a process are; those that it closes meanwhile are left out."""
    try:
        entries = list(folder.iterdir())
    except OSError:
        return
    for entry in entries:
        with contextlib.suppress(OSError):
            yield os.readlink(entry)  # noqa: PTH115 - the link names no path


def listeners(table: str) -> Mapping[int, set[str]]:
    """The inodes of listening sockets by port, from /proc/net/tcp or tcp6 (proc_net_tcp of the kernel's documents)."""
    found: dict[int, set[str]] = {}
    for line in table.splitlines()[1:]:
        fields = line.split()
        if len(fields) > 9 and fields[3] == _LISTEN:
            port = fields[1].rpartition(":")[2]
            found.setdefault(int(port, 16), set()).add(fields[9])
    return found
