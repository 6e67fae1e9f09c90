"""`python -m tests.unit.streaming.attacked`: a streaming server in a process of its own, whose memory can be looked at.

Reads one word a line, and answers each with a line: ``exec`` and ``forward`` with a URL, ``look`` with the resident
size in KiB, now and at most so far, and the bytes that connections hold. A command never reads. A forward goes to a
process that never reads on port 1, that sends without end on port 2, and that does not answer on port 3. The cycle
collector is off: what only it would free stays, but for the cycles that Python's own code makes.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
import sys
import threading
from pathlib import Path

from loopio.holding import TOTAL
from streaming import CommandStreams, Server, SocketStream, Wanted

WANTED = Wanted(stdin=True, stdout=True, stderr=True, tty=False)
PORTS = tuple(range(1, 101))


async def hangs(streams: CommandStreams) -> int:
    await asyncio.Event().wait()
    return 0


class Pod:
    """The processes at forwarded ports, as threads, so that they use nothing of the event loop."""

    def __init__(self) -> None:
        self._listening = {port: socket.create_server(("127.0.0.1", 0), backlog=1000) for port in (1, 2)}
        self._kept: list[socket.socket] = []
        for port, listening in self._listening.items():
            # So that bytes wait in the server, not in the kernel. Accepted sockets inherit this.
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            threading.Thread(target=self._accept, args=(listening, port == 2), daemon=True).start()

    def _accept(self, listening: socket.socket, floods: bool) -> None:
        block = bytes(1 << 20)
        while True:
            accepted, _ = listening.accept()
            if not floods:
                self._kept.append(accepted)
                continue
            # Enough to fill all buffers on the way; a thread for each connection would use memory, too.
            accepted.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
            accepted.setblocking(False)
            with contextlib.suppress(BlockingIOError, OSError):
                while True:
                    accepted.send(block)
            self._kept.append(accepted)

    async def connect(self, port: int) -> SocketStream:
        if port == 3:
            await asyncio.Event().wait()
        address = self._listening[2 if port == 2 else 1].getsockname()
        stream = (await asyncio.get_running_loop().create_connection(SocketStream, *address))[1]
        stream.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        return stream


def resident(name: str) -> int:
    return int(Path("/proc/self/status").read_text().partition(f"{name}:")[2].split()[0])


async def serve() -> None:
    loop = asyncio.get_running_loop()
    pod = Pod()
    server = Server("127.0.0.1", 0)
    await server.start()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        match line.strip():
            case "exec":
                answer = server.command_url("exec", hangs, WANTED)
            case "forward":
                answer = server.port_forward_url(pod.connect, PORTS)
            case _:
                if sys.version_info >= (3, 14):
                    # Its asyncio.wait has the current task in its frame, so a task that is cancelled there has itself.
                    gc.collect()
                answer = f"{resident('VmRSS')} {resident('VmHWM')} {TOTAL.held}"
        sys.stdout.write(f"{answer}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    gc.disable()
    asyncio.run(serve())
