"""Archives whose bytes depend on names and contents of files alone, not on the machine that writes them."""

from __future__ import annotations

import gzip
import io
import tarfile
import time
import zipfile
from collections.abc import Mapping
from pathlib import Path

from deploy.tarball.environment import is_program

_EXECUTABLE, _PLAIN = 0o755, 0o644


def write_tar(file: Path, files: Mapping[str, bytes], epoch: int) -> None:
    """Write a .tar.gz of ``files`` by path, with the time ``epoch`` in seconds. Programs can be executed."""
    with (
        file.open("wb") as output,
        gzip.GzipFile("", "wb", 6, output, mtime=epoch) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for name, content in sorted(files.items()):
            member = tarfile.TarInfo(name)
            member.size, member.mtime = len(content), epoch
            member.mode = _EXECUTABLE if is_program(content) else _PLAIN
            archive.addfile(member, io.BytesIO(content))


def write_zip(file: Path, start: bytes, files: Mapping[str, bytes], epoch: int) -> None:
    """Write a program that is the script ``start`` with a zip of ``files`` behind it, stored as they are."""
    with file.open("wb") as output:
        output.write(start)
        with zipfile.ZipFile(output, "w", zipfile.ZIP_STORED) as archive:
            for name, content in sorted(files.items()):
                member = zipfile.ZipInfo(name, time.gmtime(epoch)[:6])
                member.external_attr = _PLAIN << 16
                archive.writestr(member, content)
    file.chmod(_EXECUTABLE)
