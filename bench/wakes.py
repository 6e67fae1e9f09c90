"""How long the kernel lets processes wait for a CPU: what any server takes longer on a busy machine.

`python -m bench.wakes`: sends a byte to and fro between two processes that do nothing else, ten times in a row, every
ten milliseconds, until standard input ends; then prints the times, in seconds, as JSON.
"""

from __future__ import annotations

import json
import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

#: A call of gRPC takes about so many: each side has a thread that reads, and one that works.
ROUND_TRIPS: Final = 10
REST: Final = 0.01
#: As deploy/dockershim.service has it; its CPUWeight= is the same to a group of processes.
NICE: Final = -10


def prefer(pid: int) -> None:
    """Give the session of a process the weight that deploy/dockershim.service gives the server (CPUWeight=).

    A session is a group of its own for the scheduler (sched(7), autogroup): a niceness counts within it only.
    """
    group = Path(f"/proc/{pid}/autogroup")
    if group.exists():
        group.write_text(str(NICE))


class Waker:
    """A process that measures."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    def times(self) -> list[float]:
        """What it has measured, in seconds; it ends with that."""
        output, _ = self._process.communicate()
        found: list[float] = json.loads(output)
        return found


@contextmanager
def waker() -> Iterator[Waker]:
    """One, for the length of a block."""
    command = [sys.executable, "-m", __name__]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True) as process:
        prefer(process.pid)
        try:
            yield Waker(process)
        finally:
            process.kill()


def _echo(connection: socket.socket) -> None:
    while data := connection.recv(1):
        connection.send(data)


def _measure(connection: socket.socket) -> list[float]:
    times = []
    while not select.select([sys.stdin], [], [], REST)[0]:
        begun = time.perf_counter()
        for _ in range(ROUND_TRIPS):
            connection.send(b"?")
            connection.recv(1)
        times.append(time.perf_counter() - begun)
    return times


if __name__ == "__main__":
    ours, theirs = socket.socketpair()
    if os.fork() == 0:
        ours.close()
        _echo(theirs)
    else:
        theirs.close()
        sys.stdout.write(json.dumps(_measure(ours)))
