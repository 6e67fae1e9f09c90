"""What pods leave on a node, captured so that two moments can be compared."""

from __future__ import annotations

import re
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from docker import DockerClient
from pyroute2 import IPRoute

from dockershim.common.mountinfo import mounts

# Chains that CNI plugins make once and keep: their empty frame is no leak. What hangs below them is a pod's.
FRAME = {"CNI-ADMIN", "CNI-FORWARD", "CNI-HOSTPORT-DNAT", "CNI-HOSTPORT-MASQ", "CNI-HOSTPORT-SETMARK"}
FIXED_RULES = {"CNI-HOSTPORT-MASQ", "CNI-HOSTPORT-SETMARK"}


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The node's state as sets of readable lines; equal when the same things exist.

    Bridges are left out: the first pod makes one, and it stays by design.
    """

    containers: frozenset[str]
    addresses: frozenset[str]
    links: frozenset[str]
    namespaces: frozenset[str]
    rules: frozenset[str]
    checkpoints: frozenset[str]
    cni_cache: frozenset[str]

    def gained(self, before: Snapshot) -> dict[str, list[str]]:
        """What is here and was not there `before`, by field; empty when nothing was left behind."""
        grown = {field.name: getattr(self, field.name) - getattr(before, field.name) for field in fields(self)}
        return {name: sorted(lines) for name, lines in grown.items() if lines}


def capture(engine: DockerClient) -> Snapshot:
    """The state of this node now."""
    return Snapshot(
        containers=frozenset(f"{c['Id'][:12]} {c['Names'][0]}" for c in engine.api.containers(all=True)),
        addresses=_files(Path("/var/lib/cni/networks"), leave_out=("lock", "last_reserved_ip.*")),
        links=_links(),
        namespaces=_namespaces(),
        rules=_rules(),
        checkpoints=_files(Path("/var/lib/dockershim/sandbox")),
        # The lock of garbage collection belongs to the folder.
        cni_cache=_files(Path("/var/lib/cni/cache"), leave_out=(".lock",)) | _files(Path("/var/lib/cni/results")),
    )


def _files(folder: Path, leave_out: tuple[str, ...] = ()) -> frozenset[str]:
    found = (path for path in folder.rglob("*") if path.is_file())
    return frozenset(str(path) for path in found if not any(path.match(pattern) for pattern in leave_out))


def _links() -> frozenset[str]:
    # In a thread: where an event loop runs, as in an async test, pyroute2 would need to be awaited.
    with ThreadPoolExecutor(1) as thread:
        links = thread.submit(_read_links).result()
    kinds = ((link.get("ifname"), link.get(("linkinfo", "kind"))) for link in links)
    return frozenset(f"{kind} {name}" for name, kind in kinds if kind not in (None, "bridge"))


def _read_links() -> list[Any]:
    with IPRoute() as routes:
        return list(routes.get_links())


def _namespaces() -> frozenset[str]:
    """Where network namespaces are pinned, without the engine's own for host networking."""
    pinned = (mount.point for mount in mounts() if mount.kind == "nsfs")
    return frozenset(path for path in pinned if path != "/run/docker/netns/default")


def _rules() -> frozenset[str]:
    found: set[str] = set()
    for tool in ("iptables-save", "ip6tables-save"):
        saved = subprocess.run([tool], capture_output=True, text=True, check=True).stdout
        found.update(f"{tool.removesuffix('-save')} {line}" for line in normalised(saved))
    return frozenset(found)


def normalised(saved: str) -> list[str]:
    """The rules and chains of `iptables-save` output that tell of pods: no counters, no frame of the plugins."""
    kept: list[str] = []
    table = ""
    for line in saved.splitlines():
        if line.startswith("*"):
            table = line[1:]
        elif line.startswith(":"):
            chain, policy, _ = line[1:].split()
            if policy == "-" and chain not in FRAME:  # a built-in chain has a policy, and appears with its table
                kept.append(f"{table} :{chain}")
        elif line.startswith("-A"):
            target = re.search(r" -j (\S+)", line)
            if line.split()[1] not in FIXED_RULES and (target is None or target[1] not in FRAME):
                kept.append(f"{table} {line}")
    return kept
