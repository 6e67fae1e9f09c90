"""Small bundles for tests of what runs on a node: wheels of this Python with a program that prints its version."""

from __future__ import annotations

import hashlib
import io
import json
import subprocess
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from deploy.tarball import environment
from deploy.tarball.environment import Bundle

OTHER_FILES = {
    "install.sh": b"#!/bin/sh\n",
    "installer/__main__.py": b"pass\n",
    "config.toml": b"# a = 1\n",
    "openrc/dockershim": b"#!/sbin/openrc-run\ncommand=/opt/dockershim/bin/dockershim\n",
    "systemd/dockershim.service": b"ExecStart=/opt/dockershim/bin/dockershim serve\n",
    "systemd/dockershim.service.d/10-socket.conf": b"ExecStart=/opt/dockershim/bin/dockershim serve\n",
    "prefix/bin/dockershim-runc": b"\x7fELF of 1",
    "prefix/share/man/man1/dockershim.1": b"man of 1",
}


def wheel(version: str) -> bytes:
    """A wheel whose program prints the version."""
    content = io.BytesIO()
    program = f"import sys\ndef main():\n    print({version!r}, sys.argv)\n"
    files = {"__init__.py": "", "server/__init__.py": "", "server/cli.py": program}
    with zipfile.ZipFile(content, "w") as archive:
        for name, text in files.items():
            # With a time that stays, so that each call gives the same.
            archive.writestr(zipfile.ZipInfo(f"dockershim/{name}"), text)
    return content.getvalue()


def shipped(version: str, files: Mapping[str, bytes] = OTHER_FILES) -> dict[str, bytes]:
    """All files of a bundle, by path, with its table of contents."""
    name = f"wheels/dockershim-{version}-py3-none-any.whl"
    content = {**files, name: wheel(version)}
    digests = {path: hashlib.sha256(one).hexdigest() for path, one in content.items()}
    table = {"version": version, "files": digests, "wheels": {environment.ABI: [name]}}
    return content | {environment.CONTENTS: json.dumps(table).encode()}


def bundle(version: str = "1.0", files: Mapping[str, bytes] = OTHER_FILES) -> Bundle:
    return Bundle.of(shipped(version, files).__getitem__)


@contextmanager
def started(made: Path) -> Iterator[subprocess.Popen[str]]:
    """A process of an environment, which ends with the block or when its input does."""
    command = [str(made / "bin/python"), "-c", "print(flush=True); import sys; sys.stdin.read()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
