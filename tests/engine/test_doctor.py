"""``dockershim doctor`` on a real node: all well, then one thing after the other broken and mended again."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import NamedTemporaryFile

import pytest

from dockershim.api.cri.v1 import api_pb2 as api
from dockershim.doctor.pod import LABEL
from dockershim.network.netns import Pins
from tests.cri_client import CRI
from tests.engine.hung import hung
from tests.engine.pods import pull, sandboxes
from tests.node.engine import Engine
from tests.node.mounts import bind, mount
from tests.node.server import Server
from tests.node.state import Snapshot
from tests.waiting import answer, eventually

CONFLIST = Path("/etc/cni/net.d/10-test.conflist")
PLUGIN = Path("/opt/cni/bin/bandwidth")
KUBELET = Path("/var/lib/kubelet/config.yaml")
SYSCTLS = Path("/proc/sys")
TEMPLATE = "containerRuntimeEndpoint: unix:///run/{socket}\ncgroupDriver: {driver}\nfailSwapOn: false\n"


@dataclass(frozen=True, slots=True)
class Report:
    """The findings of one run, by level and title, with their fixes."""

    code: int
    fixes: Mapping[str, Mapping[str, str]]

    def red(self) -> set[str]:
        return set(self.fixes.get("fail", {}))


def command(*flags: str) -> list[str]:
    return [sys.executable, "-W", "error", "-m", "dockershim", "doctor", "--json", *flags]


async def doctor(*flags: str) -> Report:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command(*flags), stdout=pipe, stderr=pipe)
    out, err = await process.communicate()
    assert err == b""
    fixes: dict[str, dict[str, str]] = {}
    for finding in json.loads(out)["findings"]:
        found = fixes.setdefault(finding["level"], {})
        found[finding["title"]] = found.get(finding["title"], "") + finding["fix"]
    return Report(process.returncode or 0, fixes)


@pytest.fixture
async def well(cri: CRI) -> AsyncIterator[None]:
    """The server is well before the test, and is again after it."""

    async def conditions() -> list[bool]:
        response = await cri.runtime.Status(api.StatusRequest(), wait_for_ready=True, timeout=10)
        return [condition.status for condition in response.status.conditions]

    await eventually(conditions, [True, True])
    yield
    await eventually(conditions, [True, True])


@pytest.mark.every_engine
async def test_a_good_node_is_green_and_a_pod_runs(cri: CRI, well: None, snapshot: Callable[[], Snapshot]) -> None:
    await pull(cri)
    before = snapshot()
    report = await doctor("--pod")
    assert (report.code, report.red()) == (0, set())
    calls = ("RunPodSandbox", "PodSandboxStatus", "CreateContainer", "StartContainer", "ExecSync", "removal")
    assert {"engine", "server", "RuntimeReady", "NetworkReady", "CNI plugins"} <= set(report.fixes["ok"])
    assert {f"pod: {call}" for call in calls} <= set(report.fixes["ok"])
    assert snapshot().gained(before) == {}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_pod_is_removed_after_a_signal(
    number: signal.Signals, cri: CRI, well: None, snapshot: Callable[[], Snapshot]
) -> None:
    await pull(cri)
    before = snapshot()
    quiet = asyncio.subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(*command("--pod"), stdout=quiet, stderr=quiet)
    await answer(lambda: sandboxes(cri), lambda listed: any(LABEL in one.labels for one in listed.values()))
    process.send_signal(number)
    assert await process.wait() == 130
    assert snapshot().gained(before) == {}


@pytest.mark.alone
async def test_what_flags_lead_to(server: Server, well: None, tmp_path: Path) -> None:
    """Nothing of the node changes here, so several of these run at once."""
    tmpfs, hooks, dead = tmp_path / "tmpfs", tmp_path / "hooks", tmp_path / "dead"
    for folder in (tmpfs, hooks, tmp_path / "cni"):
        folder.mkdir()
    server_gone = {"remote-endpoint": str(tmp_path / "none.sock"), "failure-policy": "Fail"}
    (hooks / "a.json").write_text(json.dumps(server_gone))
    bridge = {"cniVersion": "1.0.0", "name": "a", "plugins": [{"type": "bridge", "ipam": {"type": "host-local"}}]}
    (tmp_path / "cni/a.conflist").write_text(json.dumps(bridge))
    mount("tmpfs", tmpfs, "tmpfs", data="size=1m")
    (tmpfs / "filler").write_bytes(b"x" * 1_000_000)
    try:
        with hung(dead), socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            cases = {
                "--docker-endpoint=unix:///run/nowhere.sock": ("fail", "engine", "--docker-endpoint=unix:///"),
                f"--root-directory={tmpfs}": ("fail", "disk space", f"du -x --max-depth=3 {tmpfs}"),
                f"--runtime-hooks-dir={hooks}": ("fail", "hook servers", f"rm {hooks}/a.json"),
                f"--runtime-hooks-dir={dead}": ("fail", "hook servers", "processes in state D"),
                f"--streaming-bind-addr=127.0.0.1:{port}": ("fail", "streaming address", f"sport = :{port}"),
                "--streaming-bind-addr=0.0.0.0:0": ("warn", "streaming address", "--streaming-tls-cert"),
                "--cgroup-driver=systemd": ("fail", "cgroups", "remove --cgroup-driver"),
                "--container-runtime-endpoint=unix:///run/none.sock": ("fail", "server", "start dockershim.service"),
                f"--cni-conf-dir={tmp_path}/cni": ("warn", "FORWARD policy", '"type": "firewall"'),
            }
            # Not all at once: each has a deadline, and takes all of a core for a second.
            turns = asyncio.Semaphore(3)

            async def in_turn(flag: str) -> Report:
                async with turns:
                    return await doctor(flag)

            reports = await asyncio.gather(*map(in_turn, cases))
    finally:
        subprocess.run(["umount", str(tmpfs)], check=True)
    for (flag, (level, title, fix)), report in zip(cases.items(), reports, strict=True):
        assert fix in report.fixes.get(level, {}).get(title, ""), (flag, report)
        assert report.red() == ({title} if level == "fail" else set()), (flag, report)
        assert report.code == (level == "fail")


Broken = Callable[[Server, Engine], AbstractContextManager[None]]


@contextmanager
def renamed(path: Path) -> Iterator[None]:
    away = path.rename(path.with_name(f"{path.name}.away"))
    try:
        yield
    finally:
        away.rename(path)


@contextmanager
def written(path: Path, content: str) -> Iterator[None]:
    before = path.read_text() if path.exists() else None
    path.parent.mkdir(exist_ok=True)
    path.write_text(content)
    try:
        yield
    finally:
        if before is None:
            path.unlink()
        else:
            path.write_text(before)


@contextmanager
def covered(path: Path, content: str) -> Iterator[None]:
    """Another file in the place of a setting that is the whole machine's: only this node sees it."""
    with NamedTemporaryFile("w") as other:
        other.write(content)
        other.flush()
        bind(Path(other.name), path)
        try:
            yield
        finally:
            subprocess.run(["umount", str(path)], check=True)


@contextmanager
def not_executable(path: Path) -> Iterator[None]:
    path.chmod(0o644)
    try:
        yield
    finally:
        path.chmod(0o755)


@contextmanager
def stopped(pid: int | None) -> Iterator[None]:
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@contextmanager
def engine_killed(engine: Engine) -> Iterator[None]:
    engine.kill()
    try:
        yield
    finally:
        engine.start()


@contextmanager
def server_away(server: Server) -> Iterator[None]:
    server.stop()
    try:
        yield
    finally:
        server.start()


@contextmanager
def listening(path: Path) -> Iterator[None]:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        try:
            yield
        finally:
            path.unlink()


def forgotten_pin() -> Path:
    return Pins(Path("/run/dockershim")).path("f" * 64)


def kubelets(sock: str, driver: str) -> str:
    return TEMPLATE.format(socket=sock, driver=driver)


@pytest.mark.parametrize(
    ("broken", "level", "title", "fix"),
    [
        pytest.param(lambda _, engine: engine_killed(engine), "fail", "engine", "start docker", id="engine killed"),
        pytest.param(lambda _, engine: stopped(engine.pid), "fail", "engine", "restart docker", id="engine hangs"),
        pytest.param(lambda *_: renamed(CONFLIST), "fail", "CNI configuration", "/etc/cni/net.d", id="no conflist"),
        pytest.param(lambda *_: renamed(PLUGIN), "fail", "CNI plugins", "in /opt/cni/bin", id="no plugin"),
        pytest.param(
            lambda *_: not_executable(PLUGIN), "fail", "CNI plugins", f"chmod 755 {PLUGIN}", id="plugin not executable"
        ),
        pytest.param(
            lambda *_: written(SYSCTLS / "net/ipv4/ip_forward", "0"),
            "fail",
            "IPv4 forwarding",
            "sysctl -w net.ipv4.ip_forward=1",
            id="no forwarding",
        ),
        pytest.param(
            lambda *_: written(KUBELET, kubelets("dockershim.sock", "systemd")),
            "fail",
            "kubelet's cgroup driver",
            f"cgroupDriver: cgroupfs in {KUBELET}",
            id="another cgroup driver",
        ),
        pytest.param(
            lambda *_: written(KUBELET, kubelets("cri-dockerd.sock", "cgroupfs")),
            "fail",
            "kubelet's endpoint",
            f"unix:///run/dockershim.sock in {KUBELET}",
            id="another endpoint",
        ),
        pytest.param(
            lambda *_: written(Path("/var/lib/dockershim/sandbox/torn"), "{"),
            "warn",
            "checkpoints",
            "systemctl restart dockershim",
            id="damaged checkpoint",
        ),
        pytest.param(lambda server, _: server_away(server), "fail", "server", "start dockershim", id="server away"),
        pytest.param(lambda server, _: stopped(server.pid), "fail", "server", "restart dockershim", id="server hangs"),
        pytest.param(
            lambda *_: covered(SYSCTLS / "fs/inotify/max_user_instances", "16"),
            "warn",
            "inotify",
            "sysctl -w fs.inotify.max_user_instances",
            id="few inotify instances",
        ),
        pytest.param(
            lambda *_: written(forgotten_pin(), ""),
            "warn",
            "network namespaces",
            "systemctl restart dockershim",
            id="forgotten pin",
        ),
        pytest.param(
            lambda *_: listening(Path("/run/cri-dockerd.sock")), "warn", "cri-dockerd", "ss -lxp", id="cri-dockerd"
        ),
    ],
)
async def test_what_is_broken_is_named_with_its_mend(
    broken: Broken, level: str, title: str, fix: str, server: Server, engine: Engine, well: None
) -> None:
    with broken(server, engine):
        report = await doctor()
    assert fix in report.fixes.get(level, {}).get(title, ""), report
    assert report.red() == ({title} if level == "fail" else set()), report
    assert report.code == (level == "fail")
