"""Bounded readings of a node's files and sockets, and of the output of its programs."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from cni import read_bounded

#: Files that one person or the kernel writes; a configuration of a kubelet has 2 KiB.
SHORT: Final = 64 << 10
#: Tables of the kernel with a row for each mount or socket.
TABLE: Final = 4 << 20
_LONGEST_OUTPUT: Final = 1 << 20
_PATIENCE: Final = 1.0


def text(path: Path, limit: int = SHORT) -> str | None:
    """A file's text; None if it does not exist, cannot be read, or is longer than ``limit``. Never fails to decode."""
    try:
        return read_bounded(path, limit).decode(errors="replace")
    except (OSError, ValueError):
        return None


def number(path: Path) -> int | None:
    """The number in a file of the kernel; None if there is none."""
    word = (text(path) or "").strip()
    return int(word) if word.isascii() and word.isdecimal() and len(word) < 20 else None


def output(command: Sequence[str], seconds: float = 3.0) -> str | None:
    """What a program prints; None if it is not installed. After ``seconds`` it is killed: then what came until then."""
    program = shutil.which(command[0])
    if program is None:
        return None
    with subprocess.Popen(
        [program, *command[1:]], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        assert process.stdout is not None
        timer = threading.Timer(seconds, process.kill)
        timer.start()
        try:
            printed = process.stdout.read(_LONGEST_OUTPUT)
        finally:
            timer.cancel()
            process.kill()
    return printed.decode(errors="replace")


def is_program(path: str) -> bool:
    """Whether a file is there that can be run."""
    return Path(path).is_file() and os.access(path, os.X_OK)


def answers(path: str) -> bool:
    """Whether a unix socket accepts a connection within a second."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(_PATIENCE)
        try:
            connection.connect(path)
        except OSError:
            return False
    return True
