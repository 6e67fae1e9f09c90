"""`python -m tests.attack`, in a test node: attacks one after the other, beside a pod that must not feel them.

Each line tells the 90th percentiles of what the bystander waits for (an exec probe, and the bare engine's beside it, a
list of containers, a line of its log), the worst of each, and the memory of the server and its log process: the most
during the attack, and that after it. The engine has the options for logs that an operator may have set for all.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from bench.node import options
from dockershim.api.cri.v1 import api_pb2 as api
from tests.attack import labels, places, statistics
from tests.attack.bystander import Bystander, Times, bystander, resident
from tests.cri_client import CRI
from tests.engine.hung import hung
from tests.engine.pods import container, container_config, create, pod, pull, remove, sandbox_config, start, stop
from tests.engine.streams import exec_url, forward_url
from tests.hostile_mounts import bound
from tests.node.engine import Engine
from tests.node.server import Server
from tests.processes import descriptors, log_processes, prefer
from tests.waiting import until

_MIB: Final = 1024 * 1024
#: What the bystander may wait, in terms of its quiet times; below ``_GRAIN`` seconds nobody feels a difference.
_SLOWER: Final = 2.0
_GRAIN: Final = 0.1
#: What the server may need beyond its quiet size while an attack goes on, and keep after it, MiB.
_MOST_GROWTH: Final = 128
_MOST_KEPT: Final = 48
#: Seconds after an attack until the memory is looked at again.
_AFTER: Final = 5.0
_INOTIFY: Final = Path("/proc/sys/fs/inotify/max_user_watches")
#: As an operator may have set them for all containers; none of it is meant for those of pods.
_LOG_OPTIONS: Final = {
    "log-driver": "json-file",
    "log-opts": {"tag": "{{.Name}}", "labels-regex": "^io", "env-regex": ".*", "mode": "non-blocking"},
}
_TENANT: Final = api.LinuxContainerResources(cpu_period=100_000, cpu_quota=50_000, cpu_shares=102)


@dataclass(slots=True)
class Outcome:
    """What an attack has seen, and what of it is a failure."""

    seen: dict[str, Any] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def expect(self, holds: bool, what: str) -> None:
        if not holds:
            self.failures.append(what)


Attack = Callable[["Field", Outcome], AbstractAsyncContextManager[None]]


@dataclass(frozen=True, slots=True)
class Field:
    """Where an attack takes place. ``seconds`` is how long one goes on."""

    cri: CRI
    server: Server
    seconds: float

    @asynccontextmanager
    async def attacker(self, name: str, *arguments: str, outcome: Outcome) -> AsyncIterator[None]:
        """A process that attacks for as long as the block, and then tells what it saw."""
        command = [sys.executable, "-m", "tests.attack.attackers", name, str(self.seconds), *arguments]
        process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
        try:
            yield
            output, _ = await asyncio.wait_for(process.communicate(), self.seconds + 30)
            outcome.seen |= json.loads(output)
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()


def main(arguments: Sequence[str]) -> int:
    """0, or 1 where the bystander felt an attack, or the server kept what it should not."""
    parser = argparse.ArgumentParser(prog="python -m tests.attack", description=__doc__)
    parser.add_argument("--seconds", type=float, default=10.0, help="that each attack goes on")
    parser.add_argument("--only", default="", help="attacks whose names contain this")
    given = options(parser, arguments, "attack")
    Path("/etc/docker/daemon.json").write_text(json.dumps(_LOG_OPTIONS))
    Engine().restart()
    # Whoever takes nothing is to be dropped while the attack still goes on.
    soon = given.seconds / 4
    impatient = ("-m", "tests.attack.impatient", str(soon))
    server = Server(flags=(f"--streaming-idle-timeout={soon:g}s", *places.FLAGS), program=impatient)
    server.start()
    prefer(server.pid)
    prefer(os.getpid())
    try:
        failures = asyncio.run(_all(server, given.seconds, given.only))
    finally:
        server.stop()
    for failure in failures:
        sys.stdout.write(f"FAILED {failure}\n")
    return 1 if failures else 0


async def _all(server: Server, seconds: float, only: str) -> list[str]:
    failures: list[str] = []
    async with CRI(server.target) as cri:
        await pull(cri)
        async with bystander(cri) as beside:
            await beside.watch(2)
            quiet, size = await beside.watch(seconds), resident(server)
            _report("quiet", quiet, size, size, Outcome())
            for name, attack in ATTACKS.items():
                if only in name:
                    outcome = await _one(Field(cri, server, seconds), name, attack, beside, quiet)
                    failures += (f"{name}: {failure}" for failure in outcome.failures)
    return failures


async def _one(place: Field, name: str, attack: Attack, beside: Bystander, quiet: Times) -> Outcome:
    outcome, before, most = Outcome(), resident(place.server), 0

    async def weigh() -> None:
        nonlocal most
        while True:
            most = max(most, resident(place.server))
            await asyncio.sleep(0.1)

    weighing = asyncio.create_task(weigh())
    try:
        async with attack(place, outcome):
            times = await beside.watch(place.seconds)
    except Exception as error:
        outcome.expect(False, f"{type(error).__name__}: {error}")
        times = Times([0, 0], [0, 0], [0, 0], [0, 0])
    finally:
        weighing.cancel()
    await asyncio.sleep(_AFTER)
    after = resident(place.server)
    now, then = times.p90(), quiet.p90()
    # The engine and its containers may use all of the machine: a probe can be no faster than the engine is by itself.
    limits = {
        "probe": max(_SLOWER * then["probe"], _SLOWER * now["bare"]),
        "log": _SLOWER * then["log"],
        "list": _SLOWER * then["list"],
    }
    for what, limit in limits.items():
        limit = max(limit, _GRAIN)
        outcome.expect(
            now[what] <= limit, f"{what} took {now[what] * 1000:.0f} ms, at most {limit * 1000:.0f} ms are good"
        )
    outcome.expect(most - before <= _MOST_GROWTH * _MIB, f"the server grew by {(most - before) // _MIB} MiB")
    outcome.expect(after - before <= _MOST_KEPT * _MIB, f"the server kept {(after - before) // _MIB} MiB")
    _report(name, times, most, after, outcome)
    return outcome


def _report(name: str, times: Times, most: int, after: int, outcome: Outcome) -> None:
    worst = times.worst()
    waits = "  ".join(
        f"{what} {p90 * 1000:5.0f} ms, worst {worst[what] * 1000:5.0f}" for what, p90 in times.p90().items()
    )
    seen = ", ".join(f"{what} {value}" for what, value in outcome.seen.items())
    sys.stdout.write(f"{name:16} {waits}  {most // _MIB:4} MiB, then {after // _MIB}  {seen}\n")
    sys.stdout.flush()


# -- The attacks, each for the length of a block.


@asynccontextmanager
async def _resize(place: Field, outcome: Outcome) -> AsyncIterator[None]:
    async with container(place.cri) as tenant:
        urls = [await exec_url(place.cri, tenant, "sleep", "60", stdin=True, stderr=False, tty=True) for _ in range(2)]
        async with place.attacker("resize", *urls, outcome=outcome):
            yield


@asynccontextmanager
async def _unread(place: Field, outcome: Outcome) -> AsyncIterator[None]:
    async with container(place.cri) as tenant:
        urls = [await exec_url(place.cri, tenant, "sleep", "60", stdin=True) for _ in range(3)]
        async with place.attacker("unread", *urls, outcome=outcome):
            yield


@asynccontextmanager
async def _resets(place: Field, outcome: Outcome) -> AsyncIterator[None]:
    async with AsyncExitStack() as stack:
        sandbox = sandbox_config()
        sandbox_id = await stack.enter_async_context(pod(place.cri, sandbox))
        tenant = await start(place.cri, sandbox_id, container_config(), sandbox)
        urls = (await exec_url(place.cri, tenant, "sleep", "60"), await forward_url(place.cri, sandbox_id))
        await stack.enter_async_context(place.attacker("resets", "50000", *urls, outcome=outcome))
        yield


@asynccontextmanager
async def _unread_forwards(place: Field, outcome: Outcome) -> AsyncIterator[None]:
    sandbox = sandbox_config()
    async with pod(place.cri, sandbox) as sandbox_id:
        serve = container_config("exec nc -lk -p 4998 -e yes", linux=api.LinuxContainerConfig(resources=_TENANT))
        await start(place.cri, sandbox_id, serve, sandbox)
        url = await forward_url(place.cri, sandbox_id)
        async with place.attacker("unread_forwards", url, "4998", outcome=outcome):
            yield


@asynccontextmanager
async def _backlog(place: Field, outcome: Outcome) -> AsyncIterator[None]:
    sandbox = sandbox_config()
    async with pod(place.cri, sandbox) as sandbox_id:
        status = await place.cri.runtime.PodSandboxStatus(
            api.PodSandboxStatusRequest(pod_sandbox_id=sandbox_id, verbose=True)
        )
        netns = json.loads(status.info["info"])["networkNamespace"] if "info" in status.info else ""
        url = await forward_url(place.cri, sandbox_id)
        before = len(descriptors(place.server.pid))
        async with place.attacker("backlog", url, netns, outcome=outcome):
            most = asyncio.create_task(_most_descriptors(place))
            yield
        outcome.seen["descriptors"] = (await most) - before
        outcome.expect((await most) - before < 1100, "sockets of forwards that were given up pile up")


@asynccontextmanager
async def _stubborn(place: Field, outcome: Outcome) -> AsyncIterator[None]:
    """Clients that take nothing, of commands that can end and of some that cannot: all are idle for too long."""
    async with container(place.cri) as tenant:
        before, sizes = len(descriptors(place.server.pid)), ("300000", "50000000")
        urls = [await exec_url(place.cri, tenant, "head", "-c", size, "/dev/zero", stderr=False) for size in 3 * sizes]
        async with place.attacker("stubborn", *urls, outcome=outcome):
            yield
            # They hold on, and see nothing of it: what the kernel was given for them is before the end.
            outcome.seen["clients"] = len(urls)
            outcome.seen["descriptors"] = left = len(descriptors(place.server.pid)) - before
            outcome.expect(left < len(urls), "clients that take nothing are kept")


@asynccontextmanager
async def _silent(place: Field, outcome: Outcome) -> AsyncIterator[None]:
    async with container(place.cri) as tenant:
        url = await exec_url(place.cri, tenant, "true")
        before = len(descriptors(place.server.pid))
        async with place.attacker("silent", url, outcome=outcome):
            most = asyncio.create_task(_most_descriptors(place))
            yield
        outcome.seen["descriptors"] = (await most) - before
        outcome.expect(len(descriptors(place.server.pid)) - before < 100, "connections without a request stay")


@asynccontextmanager
async def _noisy_logs(place: Field, outcome: Outcome) -> AsyncIterator[None]:
    """Output that is as hard to convert as it can be, and all of a tenant's CPU for it."""
    commands = ("yes $(printf '\\001')", "cat /dev/urandom", "yes")
    async with AsyncExitStack() as stack:
        noisy = []
        for command in commands:
            sandbox = sandbox_config()
            sandbox_id = await stack.enter_async_context(pod(place.cri, sandbox))
            config = container_config(command, linux=api.LinuxContainerConfig(resources=_TENANT))
            noisy.append(await start(place.cri, sandbox_id, config, sandbox))
        yield
        outcome.seen["deleted MiB"] = _deleted(place.server) // _MIB
        async with asyncio.timeout(60):
            other = time.monotonic()
            async with container(place.cri):
                other = time.monotonic() - other
            begun = time.monotonic()
            await asyncio.gather(*(stop(place.cri, one) for one in noisy))
            stopped = time.monotonic() - begun
            await asyncio.gather(*(remove(place.cri, one) for one in noisy))
            removed = time.monotonic() - begun - stopped
        outcome.seen |= {
            "start of another s": round(other, 1),
            "stop s": round(stopped, 1),
            "remove s": round(removed, 1),
        }
        outcome.expect(other < 5 and stopped < 15 and removed < 10, "calls wait for the backlog of logs")


@asynccontextmanager
async def _engine_options(place: Field, outcome: Outcome) -> AsyncIterator[None]:
    """What the operator has set for the engine's logs: each line is there, and has no more than the engine needs."""
    sandbox, lines = sandbox_config(), 300_000
    async with pod(place.cri, sandbox) as sandbox_id:
        config = container_config(f"seq {lines}; echo end", linux=api.LinuxContainerConfig(resources=_TENANT))
        container_id = await start(place.cri, sandbox_id, config, sandbox)
        yield
        log = Path(sandbox.log_directory, "main.log")
        await until(lambda: log.read_bytes().endswith(b" end\n"), timeout=60)
        outcome.seen["lines"] = log.read_bytes().count(b"\n") - 1
        outcome.expect(outcome.seen["lines"] == lines, "lines are lost")
        json_log = Path(f"/var/lib/docker/containers/{container_id}/{container_id}-json.log")
        outcome.expect(b'"attrs"' not in json_log.read_bytes(), "each line of the engine's log has attributes")


@contextmanager
def _no_watches() -> Any:
    before = _INOTIFY.read_text()
    _INOTIFY.write_text("1")
    try:
        yield
    finally:
        _INOTIFY.write_text(before)


@asynccontextmanager
async def _inotify(place: Field, outcome: Outcome) -> AsyncIterator[None]:
    """A neighbour has taken every watch that root may have: containers start as before, and have their logs."""
    sandbox = sandbox_config()
    async with pod(place.cri, sandbox) as sandbox_id:
        with _no_watches():
            began = time.monotonic()
            await start(place.cri, sandbox_id, container_config("echo here; exec sleep 100"), sandbox)
            outcome.seen["start s"] = round(time.monotonic() - began, 1)
            outcome.expect(outcome.seen["start s"] < 3, "a start waits for a watch")
            log = Path(sandbox.log_directory, "main.log")
            await until(lambda: log.exists() and b" here\n" in log.read_bytes())
            yield


@asynccontextmanager
async def _hung_mount(place: Field, outcome: Outcome) -> AsyncIterator[None]:
    """Containers on a disk that has stopped answering: none of them can be made, and all others can."""
    mounts = [api.Mount(host_path="/mnt/hung/data", container_path="/data")]
    async with AsyncExitStack() as stack:
        tenants = [sandbox_config() for _ in range(10)]
        pods = [await stack.enter_async_context(pod(place.cri, tenant)) for tenant in tenants]
        # It answers again before the pods are removed.
        stack.enter_context(hung(Path("/mnt/hung")))
        for tenant, sandbox_id in zip(tenants, pods, strict=True):
            creating = create(place.cri, sandbox_id, container_config(mounts=mounts), tenant)
            stack.callback(asyncio.create_task(creating).cancel)
        yield
        began = time.monotonic()
        async with asyncio.timeout(10), container(place.cri):
            outcome.seen["seconds to start another"] = round(time.monotonic() - began, 1)
        outcome.expect(time.monotonic() - began < 5, "a pod waits for the disk of others")


@asynccontextmanager
async def _mount_names(place: Field, outcome: Outcome) -> AsyncIterator[None]:
    """Volumes with folders whose names few readers of mountinfo take for names: pods start, stop and are measured, and
    a disk that has stopped answering is told of."""
    mounts = [api.Mount(host_path="/mnt/hung/data", container_path="/data")]
    async with AsyncExitStack() as stack:
        tenant = sandbox_config()
        sandbox_id = await stack.enter_async_context(pod(place.cri, tenant))
        stack.enter_context(bound(Path(stack.enter_context(TemporaryDirectory()))))
        stack.enter_context(hung(Path("/mnt/hung")))
        creating = asyncio.create_task(create(place.cri, sandbox_id, container_config(mounts=mounts), tenant))
        yield
        (refusal,) = await asyncio.gather(creating, return_exceptions=True)
        outcome.expect("the file system at /mnt/hung does not respond" in str(refusal), "a hung disk is not found")
        began = time.monotonic()
        async with container(place.cri) as other:
            outcome.seen["seconds to start another"] = round(time.monotonic() - began, 1)
            listed = await place.cri.runtime.ListPodSandboxMetrics(api.ListPodSandboxMetricsRequest())
            measured = {one.container_id for each in listed.pod_metrics for one in each.container_metrics}
            outcome.expect(other in measured, "a container is not measured")


ATTACKS: Final[dict[str, Attack]] = {
    "resize": _resize,
    "unread streams": _unread,
    "open and reset": _resets,
    "unread forwards": _unread_forwards,
    "noisy logs": _noisy_logs,
    "log options": _engine_options,
    "no watches": _inotify,
    "hung mount": _hung_mount,
    "mount names": _mount_names,
    "silent clients": _silent,
    "full backlog": _backlog,
    "stubborn clients": _stubborn,
    "open files": statistics.open_files,
    "odd names": statistics.odd_names,
    "hostile logs": places.hostile_logs,
    "idle connections": places.idle_connections,
    "long labels": labels.long_labels,
}


async def _most_descriptors(place: Field) -> int:
    end, most = time.monotonic() + place.seconds - 1, 0
    while time.monotonic() < end:
        most = max(most, len(descriptors(place.server.pid)))
        await asyncio.sleep(0.1)
    return most


def _deleted(server: Server) -> int:
    """Bytes on disk of files that have no name any more, and that the log process still holds."""
    found = {}
    for process in log_processes(server.pid):
        for descriptor in Path(f"/proc/{process}/fd").iterdir():
            try:
                status = descriptor.stat()
            except OSError:
                continue
            if status.st_nlink == 0:
                found[status.st_dev, status.st_ino] = status.st_blocks * 512
    return sum(found.values())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
