"""Makes the pictures of docs/status.md on a real node:

    python -m tests.node --engine 28 -- python -m tests.engine.pictures docs /usr/bin/chromium-headless-shell

Without the path of Chromium's headless shell it leaves out that of the page. That one was then reduced to 64 colours,
which makes it a third as large.
"""

from __future__ import annotations

import asyncio
import io
import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import grpc
from rich.console import Console

from dockershim.api.cri.v1 import api_pb2 as api
from dockershim.server.cri_calls import connect
from dockershim.status.command import look
from dockershim.status.table import render
from tests.cri_client import CRI
from tests.engine.pods import BUSYBOX, container_config, pull, run_pod, start
from tests.node.engine import Engine
from tests.node.server import Server

PAGE = "127.0.0.1:9324"
COLUMNS, LINES = 130, 32
#: Seconds: of the rates in the pictures, and for which the engine hangs.
SEEN, HANGS = 5.0, 5.0
#: Namespace, name, and what the containers run.
PODS = (
    ("kube-system", "coredns-6f6b679f8f-x2v7k", {"coredns": "exec sleep 1000"}),
    ("kube-system", "kube-proxy-9jw4t", {"kube-proxy": "while :; do usleep 30000; done"}),
    ("shop", "cart-7d4b9c5d8-mq2rk", {"cart": "while :; do seq 300; usleep 200000; done"}),
    ("shop", "search-0", {"search": "while :; do seq 40; usleep 50000; done", "warmer": "exit 1"}),
)
SLOW = "#!/bin/sh\nsleep 0.7\nexec {plugin}\n"


async def main(folder: Path, chromium: str) -> None:
    with TemporaryDirectory() as plugins:
        slow = Path(plugins) / "portmap"
        slow.write_text(SLOW.format(plugin="/opt/cni/bin/portmap"))
        slow.chmod(0o755)
        server = Server(flags=(f"--debug-bind-addr={PAGE}", f"--cni-bin-dir={plugins},/opt/cni/bin"))
        server.start()
        try:
            async with CRI(server.target) as cri:
                await pull(cri)
                await live(cri)
                await asyncio.sleep(SEEN)
                draw(server, folder / "status.svg")
                if chromium:
                    await asyncio.to_thread(photograph, chromium, folder.resolve() / "page.png")
        finally:
            subprocess.run(["crictl", f"--runtime-endpoint={server.target}", "rmp", "--all", "--force"], check=True)
            server.stop()


async def live(cri: CRI) -> None:
    """Pods that use something, an engine that hung for a while, and calls that fail."""
    for number, (namespace, name, containers) in enumerate(PODS):
        metadata = api.PodSandboxMetadata(namespace=namespace, name=name, uid=str(number))
        sandbox = api.PodSandboxConfig(metadata=metadata, log_directory=f"/var/log/pods/{name}")
        if number == 2:
            await hang_engine(cri)
        sandbox_id = await run_pod(cri, sandbox)
        await cri.images.PullImage(api.PullImageRequest(image=api.ImageSpec(image=BUSYBOX), sandbox_config=sandbox))
        for container, script in containers.items():
            await start(cri, sandbox_id, container_config(script, container), sandbox)
            if script == "exit 1":
                again = api.ContainerMetadata(name=container, attempt=1)
                await start(cri, sandbox_id, container_config(script, container, metadata=again), sandbox)
        if number == 3:
            missing = api.ImageSpec(image=BUSYBOX.rpartition(":")[0] + ":1.99")
            for _ in range(3):
                with suppress(grpc.aio.AioRpcError):
                    await cri.images.PullImage(api.PullImageRequest(image=missing, sandbox_config=sandbox))


async def hang_engine(cri: CRI) -> None:
    pid = Engine().pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    await asyncio.sleep(HANGS)
    os.kill(pid, signal.SIGCONT)
    await cri.runtime.ListContainers(api.ListContainersRequest(), timeout=20)


def draw(server: Server, path: Path) -> None:
    file = io.StringIO()
    console = Console(record=True, width=COLUMNS, file=file, force_terminal=True, highlight=False, markup=False)
    with connect(server.target) as channel:
        console.print(render(look(channel, server.target), LINES))
    picture = console.export_svg(title="dockershim status")
    # Fonts from elsewhere, which nobody needs to see it.
    path.write_text(re.sub(r"@font-face \{.*?\}\s*", "", picture, flags=re.DOTALL))


def photograph(chromium: str, path: Path) -> None:
    flags = ("--no-sandbox", "--hide-scrollbars", "--disable-lcd-text", "--window-size=1000,1760")
    with TemporaryDirectory() as data:
        command = [chromium, *flags, f"--user-data-dir={data}", f"--screenshot={path}", f"http://{PAGE}/"]
        subprocess.run(command, check=True, capture_output=True)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else ""))
