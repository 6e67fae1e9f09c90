"""`python -m tests.attack.attackers NAME SECONDS ARGUMENT...`: a client or neighbour of the server that does harm.

A process of its own, that runs only while the machine has nothing else to do, since real ones have other machines'
CPUs. It ends by itself after ``SECONDS``, and prints what it has seen as one JSON object.
"""

from __future__ import annotations

import collections
import contextlib
import ctypes
import json
import os
import resource
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from dockershim.network.netns import open_socket
from streaming.spdy import Connection, Data, ResetStatus, RstStream, Side, SynStream

_KIB: Final = 1024
_MIB: Final = 1024 * 1024
#: struct tcp_info begins with the state; these are of a connection whose other end has closed it.
_TCP_CLOSE: Final = 7
_TCP_CLOSE_WAIT: Final = 8


class Client:
    """A SPDY client that minds nobody: it sends what it likes, and reads only if it is told to."""

    def __init__(self, url: str, protocol: str, receives: int = 0) -> None:
        """``receives``: bytes that the kernel takes for it, if not as many as usual."""
        parts = urlsplit(url)
        self.sock = socket.socket()
        if receives:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receives)
        self.sock.settimeout(10)
        self.sock.connect((parts.hostname, parts.port))
        self.spdy = Connection(Side.CLIENT, flow_control=False)
        head = f"POST {parts.path} HTTP/1.1\r\nHost: {parts.netloc}\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n"
        self.sock.sendall(f"{head}X-Stream-Protocol-Version: {protocol}\r\nContent-Length: 0\r\n\r\n".encode())
        answer = b""
        while b"\r\n\r\n" not in answer:
            answer += self.sock.recv(1)
        assert answer.startswith(b"HTTP/1.1 101"), answer

    def open(self, *headers: tuple[str, str]) -> tuple[int, bytes]:
        """A new stream's number and the frame that opens it."""
        stream_id = self.spdy.next_stream_id()
        return stream_id, self.spdy.send(SynStream(stream_id, headers))

    def streams(self, *kinds: str) -> list[int]:
        """Streams of these types, opened."""
        opened = [self.open(("streamtype", kind)) for kind in kinds]
        self.sock.sendall(b"".join(frame for _, frame in opened))
        return [stream_id for stream_id, _ in opened]

    def push(self, data: bytes, end: float) -> bool:
        """Send all of it; whether that was possible before ``end`` and the server is still there."""
        view = memoryview(data)
        while view:
            left = end - time.monotonic()
            if left <= 0 or not select.select([], [self.sock], [], left)[1]:
                return False
            try:
                view = view[self.sock.send(view[: 256 * _KIB]) :]
            except OSError:
                return False
        return True

    @property
    def is_closed(self) -> bool:
        """Whether the server has closed the connection; nothing needs to be read to know."""
        return self.sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] in (_TCP_CLOSE, _TCP_CLOSE_WAIT)

    def swallow(self) -> None:
        """Read what has come, and forget it."""
        with contextlib.suppress(OSError):
            while select.select([self.sock], [], [], 0)[0] and self.sock.recv(_MIB):
                pass


def resize(end: float, *urls: str) -> dict[str, Any]:
    """Terminals whose sizes are rubbish: braces without end, and sizes by the million."""
    rubbish = (b"}" * 3 * _MIB, b'{"Width":80,"Height":24}\n' * 120_000)
    clients = [Client(url, "v4.channel.k8s.io") for url in urls]
    channels = [client.streams("error", "stdin", "stdout", "resize")[-1] for client in clients]
    sent = 0
    while time.monotonic() < end:
        for client, channel, text in zip(clients, channels, rubbish, strict=True):
            # In frames of any size: of one byte too.
            for size in (64 * _KIB, 1):
                piece = text if size > 1 else text[: 2 * _KIB]
                frames = (Data(channel, piece[at : at + size]) for at in range(0, len(piece), size))
                sent += len(piece)
                client.push(b"".join(map(client.spdy.send, frames)), min(end, time.monotonic() + 1))
    return {"MiB sent": sent // _MIB}


def unread(end: float, *urls: str) -> dict[str, Any]:
    """Streams that nobody reads, each as full as it may be: of commands that take no input, of types unheard of."""
    clients = [Client(url, "v4.channel.k8s.io") for url in urls]
    sent = 0
    for client in clients:
        client.streams("error", "stdin", "stdout", "stderr")
        for number in range(600):
            stream_id, frame = client.open(("streamtype", f"extra-{number}"))
            piece = frame + client.spdy.send(Data(stream_id, bytes(510 * _KIB)))
            if not client.push(piece, min(end, time.monotonic() + 0.5)):
                break
            client.swallow()
            sent += len(piece)
    _sleep_until(end)
    return {"MiB sent": sent // _MIB, "closed": sum(client.is_closed for client in clients)}


def resets(end: float, count: str, *urls: str) -> dict[str, Any]:
    """Streams that are opened and reset at once, of commands and of forwards."""
    reset = 0
    clients = [Client(url, "portforward.k8s.io" if "/portforward/" in url else "v4.channel.k8s.io") for url in urls]
    while reset < int(count) and time.monotonic() < end:
        for client in clients:
            frames = b""
            for number in range(100):
                fields = (("streamtype", "data"), ("port", "1"), ("requestid", str(reset + number)))
                stream_id, frame = client.open(*fields)
                frames += frame + client.spdy.send(RstStream(stream_id, ResetStatus.CANCEL))
            client.push(frames, end)
            client.swallow()
        reset += 100
    _sleep_until(end)
    return {"streams": reset * len(clients)}


def unread_forwards(end: float, url: str, port: str) -> dict[str, Any]:
    """Three hundred connections to a port that never stops sending, to a client that reads none of them."""
    client = Client(url, "portforward.k8s.io")
    for number in range(300):
        client.push(b"".join(_pair(client, port, number)), end)
    _sleep_until(end)
    return {"closed": client.is_closed}


def backlog(end: float, url: str, netns: str) -> dict[str, Any]:
    """Connections to a port that answers nobody, given up as soon as they are asked for."""
    client, opened, port = Client(url, "portforward.k8s.io"), 0, "4999"
    with _unanswering(Path(netns), int(port)):
        while opened < 20_000 and time.monotonic() < end:
            error, data = _pair(client, port, opened)
            resets = (client.spdy.send(RstStream(number, ResetStatus.CANCEL)) for number in _last_two(client))
            client.push(b"".join((error, data, *resets)), end)
            client.swallow()
            opened += 1
        _sleep_until(end)
    return {"forwards": opened}


def stubborn(end: float, *urls: str) -> dict[str, Any]:
    """Clients that stop reading; their commands have ended, and what they wrote waits."""
    clients = [Client(url, "v4.channel.k8s.io", receives=4 * _KIB) for url in urls]
    for client in clients:
        client.streams("error", "stdout")
    _sleep_until(end)
    return {}


def silent(end: float, url: str) -> dict[str, Any]:
    """Connections that ask for nothing, or never end asking, beside some that talk nonsense."""
    parts = urlsplit(url)
    beginnings = (b"", b"GET / HT", b"GET /exec/x HTTP/1.1\r\nHost: x\r\nA: ", b"\x16\x03\x01nonsense\r\n\r\n")
    refused, waiting = 0, []
    with ExitStack() as stack:
        for number in range(2000):
            if time.monotonic() > end:
                break
            try:
                sock = stack.enter_context(socket.create_connection((parts.hostname, parts.port), timeout=1))
                sock.sendall(beginnings[number % len(beginnings)])
                waiting.append(sock)
            except OSError:
                refused += 1
        while time.monotonic() < end:
            for sock in waiting:
                # Each sends a byte from time to time, so none is idle.
                with contextlib.suppress(OSError):
                    sock.send(b"x")
            time.sleep(0.5)
        states = [sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] for sock in waiting]
    return {"refused": refused, "open": sum(state not in (_TCP_CLOSE, _TCP_CLOSE_WAIT) for state in states)}


def idle(end: float, *addresses: str) -> dict[str, Any]:
    """Connections that ask for nothing, never end asking, or take no answer, as many as can be, and always new ones."""
    request = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
    beginnings, opened, held = (b"", request[:20], request, b"\x16\x03\x01"), 0, collections.deque[socket.socket]()
    next_bytes = 0.0
    targets = [(host, int(port)) for host, port in (address.split(":") for address in addresses)]
    while time.monotonic() < end:
        for target in targets:
            with contextlib.suppress(OSError):
                sock = socket.socket()
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                sock.settimeout(1)
                held.append(sock)
                sock.connect(target)
                sock.sendall(beginnings[opened % len(beginnings)])
                opened += 1
        if time.monotonic() >= next_bytes:
            # A byte from time to time, so none is silent.
            next_bytes = time.monotonic() + 0.5
            for sock in held:
                with contextlib.suppress(OSError):
                    sock.send(b"x")
        if len(held) > 400:
            held.popleft().close()
        time.sleep(0.002)
    for sock in held:
        sock.close()
    return {"connections": opened}


def _pair(client: Client, port: str, number: int) -> tuple[bytes, bytes]:
    fields = (("port", port), ("requestid", str(number)))
    return client.open(("streamtype", "error"), *fields)[1], client.open(("streamtype", "data"), *fields)[1]


def _last_two(client: Client) -> tuple[int, int]:
    following = client.spdy.next_stream_id()
    return following - 4, following - 2


@contextmanager
def _unanswering(netns: Path, port: int) -> Iterator[None]:
    """A port of a pod whose backlog is full: the kernel drops what asks for a connection."""
    with ExitStack() as stack:
        for family, host in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
            listener = stack.enter_context(open_socket(netns, family))
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            listener.bind((host, port))
            listener.listen(0)
            for _ in range(3):
                filler = stack.enter_context(open_socket(netns, family))
                filler.setblocking(False)
                filler.connect_ex((host, port))
        yield


def hoard(end: float, cgroup: str, processes: str, descriptors: str) -> dict[str, Any]:
    """Processes of a container, each with so many descriptors: from outside, as the container's image has few tools."""
    # They are to be there soon, and need nothing of the machine afterwards.
    os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    null = os.open(os.devnull, os.O_RDONLY)
    held = len([os.dup(null) for _ in range(min(int(descriptors), most - 100))])
    children: list[int] = []
    try:
        for _ in range(int(processes)):
            children.append(_waiting_child())
            Path(cgroup, "cgroup.procs").write_text(f"{children[-1]}\n")
        _sleep_until(end)
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    return {"processes": len(children), "descriptors of each": held}


def _waiting_child() -> int:
    parent = os.getpid()
    if child := os.fork():
        return child
    # It ends with its parent (prctl(2), PR_SET_PDEATHSIG), also if that has ended by now.
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    while os.getppid() == parent:
        signal.pause()
    os._exit(0)


def _sleep_until(end: float) -> None:
    time.sleep(max(0.0, end - time.monotonic()))


ATTACKERS: Final[dict[str, Callable[..., dict[str, Any]]]] = {
    attacker.__name__: attacker
    for attacker in (resize, unread, resets, unread_forwards, backlog, stubborn, silent, hoard, idle)
}


def main(arguments: Sequence[str]) -> None:
    name, seconds, *rest = arguments
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    seen = ATTACKERS[name](time.monotonic() + float(seconds), *rest)
    sys.stdout.write(json.dumps(seen))


if __name__ == "__main__":
    main(sys.argv[1:])
