"""The part of dockershim-runc that rewrites config.json, compiled as a library and called in this process.

Its input ends at a page that cannot be read, so one byte too far ends the test.
"""

from __future__ import annotations

import ctypes
import mmap
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from deploy.runc import SOURCE

PAGE = mmap.PAGESIZE


class Span(ctypes.Structure):
    _fields_ = (("at", ctypes.c_void_p), ("length", ctypes.c_size_t))

    def text(self) -> bytes:
        return ctypes.string_at(self.at or 0, self.length) if self.length else b""


class Request(ctypes.Structure):
    _fields_ = (
        ("users", ctypes.c_int),
        ("uid", ctypes.c_ulong),
        ("gid", ctypes.c_ulong),
        ("size", ctypes.c_ulong),
        ("mounts", Span),
        ("root", Span),
        ("network", Span),
        ("early", ctypes.c_int),
        ("prefix", Span),
        ("sysctls", Span),
    )


class Refused(Exception):
    """The program would end with this text."""


@dataclass(frozen=True)
class Asked:
    """What ``read_request`` found of a user namespace: ids, the raw network path, and the raw root path."""

    ids: tuple[int, int, int]
    network: bytes
    root: bytes


@dataclass(frozen=True)
class AskedNetwork:
    """What it found of a network namespace: the raw beginning of its path, and the raw lines of sysctls."""

    prefix: bytes
    sysctls: bytes


class Library:
    """The functions of config.c."""

    def __init__(self, folder: Path) -> None:
        file = folder / "config.so"
        subprocess.run(["gcc", "-O1", "-shared", "-fPIC", "-o", file, SOURCE / "config.c"], check=True)
        self._code = ctypes.CDLL(str(file))
        functions = (self._code.read_request, self._code.amend, self._code.join_network, self._code.add_members)
        for function in functions:
            function.restype = ctypes.c_char_p
        self._code.read_request.argtypes = (Span, ctypes.POINTER(Request))
        self._code.amend.argtypes = (
            Span,
            ctypes.POINTER(Request),
            ctypes.c_char_p,
            ctypes.c_char_p,
            ctypes.c_char_p,
            ctypes.c_size_t,
            ctypes.POINTER(ctypes.c_size_t),
        )
        self._code.join_network.argtypes = (
            Span,
            ctypes.POINTER(Request),
            ctypes.c_char_p,
            ctypes.c_char_p,
            ctypes.c_size_t,
            ctypes.POINTER(ctypes.c_size_t),
        )
        self._code.add_members.argtypes = (
            Span,
            ctypes.c_char_p,
            ctypes.c_char_p,
            ctypes.c_size_t,
            ctypes.POINTER(ctypes.c_size_t),
        )
        self._libc = ctypes.CDLL(None)
        self._libc.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)

    def read(self, config: bytes) -> Asked | AskedNetwork | None:
        """None if nothing is asked for. Raises Refused."""
        request = Request()
        with _Guarded(self._libc, config) as span:
            problem = self._code.read_request(span, ctypes.byref(request))
            if problem is not None:
                raise Refused(problem.decode())
            if request.early:
                return AskedNetwork(request.prefix.text(), request.sysctls.text())
            if not request.users:
                return None
            return Asked((request.uid, request.gid, request.size), request.network.text(), request.root.text())

    def amend(self, config: bytes, root: str = "/root", user: str = "", room: int | None = None) -> bytes:
        """The new config.json with a user namespace. Raises Refused."""
        return self._rewrite(self._code.amend, config, (root.encode(), user.encode()), room)

    def join(self, config: bytes, path: str, room: int | None = None) -> bytes:
        """The new config.json with the network namespace at ``path``. Raises Refused."""
        return self._rewrite(self._code.join_network, config, (path.encode(),), room)

    def add(self, config: bytes) -> bytes | None:
        """The new config.json with the members of the annotation; None if there is none. Raises Refused."""
        length, room = ctypes.c_size_t(), 2 * len(config)
        # Their last byte shows what is written behind the room.
        work, out = (ctypes.create_string_buffer(b"\xa5" * (room + 1)) for _ in range(2))
        with _Guarded(self._libc, config) as span:
            problem = self._code.add_members(span, work, out, room, ctypes.byref(length))
        assert work.raw[room : room + 1] == out.raw[room : room + 1] == b"\xa5"
        if problem is not None:
            raise Refused(problem.decode())
        return out.raw[: length.value] or None

    def _rewrite(self, function: Any, config: bytes, words: tuple[bytes, ...], room: int | None) -> bytes:
        request, length = Request(), ctypes.c_size_t()
        room = len(config) + (1 << 20) if room is None else room
        out = ctypes.create_string_buffer(room + 1)
        with _Guarded(self._libc, config) as span:
            problem = self._code.read_request(span, ctypes.byref(request))
            if problem is None:
                problem = function(span, ctypes.byref(request), *words, out, room, ctypes.byref(length))
        if problem is not None:
            raise Refused(problem.decode())
        return out.raw[: length.value]


class _Guarded:
    """A text at the end of readable memory."""

    def __init__(self, libc: ctypes.CDLL, text: bytes) -> None:
        self._pages = -(-len(text) // PAGE) + 1
        self._memory = mmap.mmap(-1, self._pages * PAGE)
        begin = (self._pages - 1) * PAGE - len(text)
        self._memory[begin : begin + len(text)] = text
        self._view = ctypes.c_char.from_buffer(self._memory)
        address = ctypes.addressof(self._view)
        libc.mprotect(address + (self._pages - 1) * PAGE, PAGE, 0)
        self._span = Span(address + begin, len(text))

    def __enter__(self) -> Span:
        return self._span

    def __exit__(self, *_: object) -> None:
        del self._view
        self._memory.close()


def damaged(data: st.DataObject, text: bytes) -> bytes:
    """The text with a few bytes replaced, removed or added."""
    made = bytearray(text)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(made) - 1))
        made[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    return bytes(made)
