"""The files of container logs, and their lines."""

from __future__ import annotations

import re
from pathlib import Path

from dockershim.api.cri.v1 import api_pb2 as api

LINE = re.compile(rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,9})?Z (stdout|stderr) ([FP]) ([^\n]*)\n")


def log_file(sandbox: api.PodSandboxConfig, name: str = "main.log") -> Path:
    return Path(sandbox.log_directory, name)


def read(path: Path) -> list[tuple[str, str, bytes]]:
    """Stream, tag and text of every line of a CRI log; what is no such line fails the test."""
    return parse(path.read_bytes())


def parse(content: bytes) -> list[tuple[str, str, bytes]]:
    found = [(line[1].decode(), line[2].decode(), line[3]) for line in LINE.finditer(content)]
    assert sum(len(line[0]) for line in LINE.finditer(content)) == len(content), content[-300:]
    return found


def texts(path: Path, stream: str = "stdout") -> list[bytes]:
    return [text for of, _, text in read(path) if of == stream]


def numbers(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]
