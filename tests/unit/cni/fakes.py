"""Stand-ins for plugins: a recorder in place of processes, and a real plugin that a file steers."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import cni

CONTAINER = "c0ffee"
NETNS = "/run/netns/pod"

Answer = Mapping[str, Any] | bytes | cni.Completion | Exception


class Recorder:
    """An executor that keeps what it was asked to run and answers by plugin and command.

    ``answers`` has keys ``"<plugin> <command>"``; without one the plugin succeeds and prints an empty object.
    """

    def __init__(self) -> None:
        self.invocations: list[cni.Invocation] = []
        self.answers: dict[str, Answer] = {}
        self.delay: Callable[[cni.Invocation], float] = lambda invocation: 0.0

    async def run(self, invocation: cni.Invocation) -> cni.Completion:
        self.invocations.append(invocation)
        await asyncio.sleep(self.delay(invocation))
        answer = self.answers.get(f"{invocation.plugin.name} {invocation.command}", b"{}")
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, cni.Completion):
            return answer
        return cni.Completion(0, answer if isinstance(answer, bytes) else json.dumps(answer).encode(), b"")

    @property
    def calls(self) -> list[str]:
        return [f"{invocation.plugin.name} {invocation.command}" for invocation in self.invocations]

    @property
    def configs(self) -> list[dict[str, Any]]:
        return [json.loads(invocation.config) for invocation in self.invocations]


def failure(code: int, msg: str, details: str = "") -> cni.Completion:
    """How a plugin ends that reports an error."""
    answer = {"cniVersion": "1.0.0", "code": code, "msg": msg, "details": details}
    return cni.Completion(1, json.dumps(answer).encode(), b"")


def network(*plugins: str | dict[str, Any], version: str = "1.0.0", **more: Any) -> cni.NetworkList:
    objects = [{"type": plugin} if isinstance(plugin, str) else plugin for plugin in plugins]
    return cni.NetworkList.parse({"cniVersion": version, "name": "podnet", "plugins": objects, **more})


def result(address: str = "10.0.0.2/24", version: str = "1.0.0") -> dict[str, Any]:
    return {"cniVersion": version, "ips": [{"address": address}]}


def install(bin_dir: Path, *names: str) -> None:
    """Empty executable files, enough for the search of a runtime with a recorder."""
    bin_dir.mkdir(exist_ok=True)
    for name in names:
        (bin_dir / name).touch(mode=0o755)


def install_steered(bin_dir: Path, name: str, **steering: Any) -> Path:
    """A real plugin, see ``steered_plugin.py``; returns its path."""
    bin_dir.mkdir(exist_ok=True)
    plugin = bin_dir / name
    source = Path(__file__).with_name("steered_plugin.py").read_text()
    plugin.write_text(f"#!{sys.executable} -SE\n{source}")
    plugin.chmod(0o755)
    steer(plugin, **steering)
    return plugin


def steer(plugin: Path, **steering: Any) -> None:
    plugin.with_suffix(".steering").write_text(json.dumps(steering))


async def announced(path: Path) -> int:
    """Wait for a steered plugin that announces itself; returns its process id."""
    async with asyncio.timeout(5):
        while not path.exists() or not path.read_text():  # noqa: ASYNC110  # another process makes it
            await asyncio.sleep(0.01)
    return int(path.read_text())


def runs(process: int) -> bool:
    """Whether a process is there and has not ended; whose child it is decides how long it stays a zombie."""
    try:
        status = Path(f"/proc/{process}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return status.rpartition(")")[2].split()[0] not in "ZX"


async def ended(process: int) -> None:
    """Wait for a process that was killed but is nobody's here to wait for."""
    async with asyncio.timeout(5):
        while runs(process):  # noqa: ASYNC110  # another process's child
            await asyncio.sleep(0.01)
