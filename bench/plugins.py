"""The node's CNI plugins, executed with nothing around them (SPEC.md of CNI, sections 2 and 3)."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

BINARIES = Path("/opt/cni/bin")
CONFIGURATIONS = Path("/etc/cni/net.d")


@dataclass(frozen=True, slots=True)
class Attachment:
    """One pod's parameters of every execution: CNI_CONTAINERID, CNI_NETNS, CNI_ARGS, capability arguments."""

    container_id: str
    netns: str
    args: Sequence[tuple[str, str]]
    capability_args: Mapping[str, Any]


class Network:
    """The first configuration list of the node."""

    def __init__(self) -> None:
        self._list = json.loads(min(CONFIGURATIONS.glob("*.conflist")).read_bytes())

    def add(self, attachment: Attachment) -> dict[str, Any]:
        """ADD of each plugin, one after the other, each with the result before it; gives the last result."""
        result: dict[str, Any] | None = None
        for plugin in self._list["plugins"]:
            result = json.loads(self._run("ADD", plugin, attachment, result))
        assert result is not None, "a list has at least one plugin"
        return result

    def delete(self, attachment: Attachment, result: dict[str, Any] | None) -> None:
        """DEL of each plugin backwards, one after the other, each with the result of ADD."""
        for plugin in reversed(self._list["plugins"]):
            self._run("DEL", plugin, attachment, result)

    def _run(
        self, command: str, plugin: Mapping[str, Any], attachment: Attachment, previous: dict[str, Any] | None
    ) -> bytes:
        """Blocks: nothing else goes on in this process meanwhile, and no way to run a program is quicker."""
        environment = {
            **os.environ,
            "CNI_COMMAND": command,
            "CNI_CONTAINERID": attachment.container_id,
            "CNI_NETNS": attachment.netns,
            "CNI_IFNAME": "eth0",
            "CNI_ARGS": ";".join(f"{key}={value}" for key, value in attachment.args),
            "CNI_PATH": str(BINARIES),
        }
        request = json.dumps(self._request(plugin, attachment, previous)).encode()
        done = subprocess.run([BINARIES / plugin["type"]], input=request, capture_output=True, env=environment)
        if done.returncode:
            raise RuntimeError(f"{command} of plugin {plugin['type']}: {done.stdout.decode()} {done.stderr.decode()}")
        return done.stdout

    def _request(
        self, plugin: Mapping[str, Any], attachment: Attachment, previous: dict[str, Any] | None
    ) -> dict[str, Any]:
        wanted = plugin.get("capabilities", {})
        granted = {key: value for key, value in attachment.capability_args.items() if wanted.get(key)}
        return {
            **{key: value for key, value in plugin.items() if key != "capabilities"},
            "name": self._list["name"],
            "cniVersion": self._list["cniVersion"],
            **({"runtimeConfig": granted} if granted else {}),
            **({"prevResult": previous} if previous else {}),
        }
