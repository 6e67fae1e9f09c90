"""The part of dockershim-runc that rewrites config.json, compiled as a library and called in this process.

Its input ends at a page that cannot be read, so one byte too far ends the test.
"""

from __future__ import annotations

import ctypes
import mmap
import subprocess
from dataclasses import dataclass
from pathlib import Path

from deploy.runc import SOURCE

PAGE = mmap.PAGESIZE


class Span(ctypes.Structure):
    _fields_ = (("at", ctypes.c_void_p), ("length", ctypes.c_size_t))

    def text(self) -> bytes:
        return ctypes.string_at(self.at or 0, self.length) if self.length else b""


class Request(ctypes.Structure):
    _fields_ = (
        ("asked", ctypes.c_int),
        ("uid", ctypes.c_ulong),
        ("gid", ctypes.c_ulong),
        ("size", ctypes.c_ulong),
        ("mounts", Span),
        ("root", Span),
        ("network", Span),
    )


class Refused(Exception):
    """The program would end with this text."""


@dataclass(frozen=True)
class Asked:
    """What ``read_request`` found: ids, the raw network path, and the raw root path."""

    ids: tuple[int, int, int]
    network: bytes
    root: bytes


class Library:
    """``read_request`` and ``amend`` of config.c."""

    def __init__(self, folder: Path) -> None:
        file = folder / "config.so"
        subprocess.run(["gcc", "-O1", "-shared", "-fPIC", "-o", file, SOURCE / "config.c"], check=True)
        self._code = ctypes.CDLL(str(file))
        self._code.read_request.restype = self._code.amend.restype = ctypes.c_char_p
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
        self._libc = ctypes.CDLL(None)
        self._libc.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)

    def read(self, config: bytes) -> Asked | None:
        """None if nothing is asked for. Raises Refused."""
        request = Request()
        with _Guarded(self._libc, config) as span:
            problem = self._code.read_request(span, ctypes.byref(request))
            if problem is not None:
                raise Refused(problem.decode())
            if not request.asked:
                return None
            return Asked((request.uid, request.gid, request.size), request.network.text(), request.root.text())

    def amend(self, config: bytes, root: str = "/root", user: str = "", room: int | None = None) -> bytes:
        """The new config.json. Raises Refused."""
        request, length = Request(), ctypes.c_size_t()
        room = len(config) + (1 << 20) if room is None else room
        out = ctypes.create_string_buffer(room + 1)
        with _Guarded(self._libc, config) as span:
            problem = self._code.read_request(span, ctypes.byref(request))
            if problem is None:
                words = (root.encode(), user.encode())
                problem = self._code.amend(span, ctypes.byref(request), *words, out, room, ctypes.byref(length))
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
