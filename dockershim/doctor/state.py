"""State on the node: checkpoints, pins, stuck pods, hook servers, and what cri-dockerd has left behind."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from checkpoints import CheckpointError, Store
from dockershim.api.cri.v1 import api_pb2 as cri
from dockershim.doctor.findings import Finding, fail, ok, warn
from dockershim.doctor.node_files import answers
from dockershim.hooks.config import FailurePolicy, HookServer, Reading

CRI_DOCKERD_ROOT: Final = Path("/var/lib/cri-dockerd")
CRI_DOCKERD_SOCKETS: Final = (Path("/run/cri-dockerd.sock"),)
CRI_DOCKERD_UNITS: Final = ("cri-docker.service", "cri-docker.socket")
#: What is wrong while cri-dockerd is active.
TWO_SERVERS: Final = "so two servers manage the same pods"
_STUCK_AFTER: Final = 3600.0
_SHOWN: Final = 5


def check_checkpoints(root: Path, unit: str) -> Iterator[Finding]:
    """The checkpoints below a root directory. Changes nothing. ``unit`` runs the server."""
    title = "checkpoints"
    # A foreign store is only read: the server, not this command, sets damaged files aside.
    store = Store(root / "sandbox", foreign=True)
    try:
        loaded, problems = store.load_all()
        damaged = store.damaged()
    except (CheckpointError, OSError) as error:
        yield fail(title, f"cannot be read: {error}", f"ls -l {root}")
        return
    if damaged:
        found = f"{damaged} damaged, moved aside; the networks of these pods may not have been released"
        yield warn(title, found, f"examine them, then: rm -r {shlex.quote(str(root / 'damaged'))}")
    for problem in problems[:_SHOWN]:
        place = root / "sandbox" / problem.file_name
        yield warn(title, f"{place}: {problem.error}", f"systemctl restart {unit} (it moves the file aside)")
    if not damaged and not problems:
        yield ok(title, f"{len(loaded)} in {root / 'sandbox'}")


def check_stuck(
    sandboxes: Sequence[cri.PodSandbox] | None, containers: Sequence[cri.Container] | None, now: float
) -> Iterator[Finding]:
    """Pods that are not removed; ``now`` in seconds since 1970. None: the server did not respond."""
    if sandboxes is None or containers is None:
        return
    used = {container.pod_sandbox_id for container in containers}
    stuck = [
        sandbox
        for sandbox in sandboxes
        if sandbox.state == cri.SANDBOX_NOTREADY
        and sandbox.id not in used
        and now - sandbox.created_at / 1e9 > _STUCK_AFTER
    ]
    if not stuck:
        yield ok("stuck pods", f"none of {len(sandboxes)} pods")
        return
    names = (f"{one.metadata.namespace}/{one.metadata.name}" for one in stuck[:_SHOWN])
    found = f"{len(stuck)} not ready and without containers for more than an hour: {', '.join(names)}"
    yield warn("stuck pods", found, f"crictl rmp --force {shlex.join(one.id[:13] for one in stuck[:_SHOWN])}")


def check_pins(
    before: Collection[str], after: Collection[str], known: Collection[str] | None, unit: str
) -> Iterator[Finding]:
    """Pins of pods that are gone.

    ``before`` and ``after`` are the sandbox ids of the pins before and after ``known``, the ids of all pods and
    containers, was read, so that a pod that comes or goes meanwhile is not taken for a lost one. ``unit`` runs the
    server.
    """
    if known is None:
        return
    lost = sorted((set(before) & set(after)) - set(known))
    if lost:
        ids = ", ".join(one[:13] for one in lost[:_SHOWN])
        found = f"{len(lost)} of {len(after)} pinned belong to pods that no longer exist: {ids}"
        yield warn("network namespaces", found, f"systemctl restart {unit} (it removes them on startup)")
    else:
        yield ok("network namespaces", f"{len(after)} pinned, all of existing pods")


def check_hooks(reading: Reading, reachable: Mapping[str, bool], folder: Path) -> Iterator[Finding]:
    """``reachable`` has whether each hook server responds, by its name."""
    title = "hook servers"
    for problem in reading.problems[:_SHOWN]:
        yield warn(title, problem, f"fix or remove the file in {folder}")
    for server in reading.servers:
        if reachable[server.name]:
            yield ok(title, f"{server.name} responds on {server.endpoint}")
        elif server.policy is FailurePolicy.FAIL:
            found = f"{server.name} does not respond on {server.endpoint}; its policy is Fail, so no pod can start"
            yield fail(title, found, f"start it, or: rm {shlex.quote(str(folder / server.name))}")
        else:
            found = f"{server.name} does not respond on {server.endpoint}"
            yield warn(title, found, f"start it, or: rm {shlex.quote(str(folder / server.name))}")
    if not reading.servers and not reading.problems:
        yield ok(title, "none configured")


def reachable(servers: Iterable[HookServer]) -> dict[str, bool]:
    """Whether each hook server responds, by name."""
    return {server.name: answers(server.endpoint) for server in servers}


def check_cri_dockerd(
    units: Sequence[str], sockets: Sequence[Path], checkpoints: int, *, adopts: bool
) -> Iterator[Finding]:
    """``units`` are active, ``sockets`` answer and are not ours, ``checkpoints`` is the number of its files."""
    title = "cri-dockerd"
    if units:
        found = f"{', '.join(units)} still active, {TWO_SERVERS}"
        yield warn(title, found, f"systemctl disable --now {' '.join(units)}")
    elif sockets:
        found = f"still listening on {', '.join(map(str, sockets))}, {TWO_SERVERS}"
        yield warn(title, found, f"stop the process that listens there (ss -lxp src {sockets[0]})")
    if checkpoints and not adopts:
        found = f"{checkpoints} checkpoints in {CRI_DOCKERD_ROOT} are not read: pods lost by the engine are not listed"
        yield warn(title, found, f"add --adopt-from={CRI_DOCKERD_ROOT} to the server's flags")
    elif not units and not sockets:
        yield ok(title, "not active")
