"""What a new server has ready before the first pod, which would wait for it."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dockershim.server.config import Config
from dockershim.server.wiring import compose
from tests.processes import host_path_processes, log_processes

PLUGIN = """#!/bin/sh
echo "$CNI_COMMAND" >> "${0%/*}/commands"
echo '{"cniVersion": "1.0.0", "supportedVersions": ["1.0.0"]}'
"""


def config(folder: Path, **values: Any) -> Config:
    return Config(
        docker_endpoint=f"unix://{folder}/engine.sock",
        root_directory=folder / "root",
        state_directory=folder / "state",
        cni_conf_dir=folder,
        cni_bin_dir=(folder,),
        cni_cache_dir=folder / "cache",
        **values,
    )


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - other processes raise no event of ours
            await asyncio.sleep(0.01)


async def test_its_own_processes_run(tmp_path: Path) -> None:
    async with compose(config(tmp_path)):
        await until(lambda: bool(log_processes(os.getpid()) and host_path_processes(os.getpid())))
    assert not log_processes(os.getpid()) + host_path_processes(os.getpid())


async def test_no_process_copies_logs_where_none_are_copied(tmp_path: Path) -> None:
    async with compose(config(tmp_path, container_log_format="docker")):
        await until(lambda: bool(host_path_processes(os.getpid())))
        assert not log_processes(os.getpid())


async def test_plugins_have_told_their_versions(tmp_path: Path) -> None:
    plugin = tmp_path / "recorder"
    plugin.write_text(PLUGIN)
    plugin.chmod(0o755)
    network = {"cniVersion": "1.0.0", "name": "pods", "plugins": [{"type": "recorder"}]}
    (tmp_path / "10-pods.conflist").write_text(json.dumps(network))
    commands = tmp_path / "commands"
    async with compose(config(tmp_path)):
        await until(commands.exists)
    assert commands.read_text() == "VERSION\n"
