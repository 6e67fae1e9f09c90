"""What an engine and a kubelet do to the files of a container's log, without either."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

from dockershim.logs.copying import Copying


def engine_line(text: str, number: int = 0, stream: str = "stdout") -> bytes:
    """A line as engines write it: compact, the time last, and <, > and & escaped as Go does."""
    entry = {"log": text, "stream": stream, "time": f"2026-01-02T03:04:05.{number:09}Z"}
    encoded = json.dumps(entry, separators=(",", ":"), ensure_ascii=False)
    for char in "<>&":
        encoded = encoded.replace(char, f"\\u{ord(char):04x}")
    return encoded.encode() + b"\n"


@dataclass(slots=True)
class EngineLog:
    """A container's json-files, at most ``keep`` of them."""

    path: Path
    keep: int = 3
    written: list[bytes] = field(default_factory=list)

    def write(self, count: int, text: str = "line") -> None:
        with self.path.open("ab") as file:
            for _ in range(count):
                number = len(self.written)
                file.write(engine_line(f"{text} {number}\n", number))
                self.written.append(b"2026-01-02T03:04:05.%09dZ stdout F %b %d\n" % (number, text.encode(), number))

    def rotate(self) -> None:
        """As the engine does it: the oldest goes, the others move on, a new one is made."""
        older = [self.path.with_name(f"{self.path.name}.{number}") for number in range(1, self.keep)]
        older[-1].unlink(missing_ok=True)
        for one, next_one in zip([self.path, *older][-2::-1], older[::-1], strict=True):
            if one.exists():
                one.rename(next_one)
        self.path.touch()


@dataclass(slots=True)
class KubeletLog:
    """The CRI file and those that it was before."""

    path: Path
    rotated: list[Path] = field(default_factory=list)

    def rotate(self) -> None:
        if self.path.exists():
            self.rotated.append(self.path.with_name(f"{self.path.name}.{len(self.rotated):03}"))
            self.path.rename(self.rotated[-1])

    def lines(self) -> list[bytes]:
        """Every line of all files, in order."""
        files = [*self.rotated, *([self.path] if self.path.exists() else [])]
        return b"".join(file.read_bytes() for file in files).splitlines(keepends=True)


class Pod:
    """The files of one container's log."""

    def __init__(self, folder: Path, name: str) -> None:
        self.id = name
        (folder / "engine" / name).mkdir(parents=True)
        self.directory = folder / "pods" / name
        self.directory.mkdir(parents=True)
        self.engine = EngineLog(folder / "engine" / name / f"{name}-json.log")
        self.kubelet = KubeletLog(self.directory / "0.log")
        self.engine.path.touch()

    def is_complete(self) -> bool:
        return self.kubelet.lines() == self.engine.written


class Files:
    """A container's files, and the process that copies them, which can be killed."""

    def __init__(self, folder: Path) -> None:
        (folder / "engine").mkdir()
        self.directory = folder / "pod"
        (self.directory / "c").mkdir(parents=True)
        self.engine = EngineLog(folder / "engine" / "c-json.log")
        self.kubelet = KubeletLog(self.directory / "c" / "0.log")
        self.position = folder / "position"
        self.reports: list[str] = []
        self.engine.path.touch()
        self.start()

    def start(self) -> None:
        self.copying = Copying(self.engine.path, self.directory, self.kubelet.path, self.position, self.reports.append)

    def restart(self) -> None:
        """A new process; nothing that the old one had in memory is there."""
        self.copying.close()
        self.start()

    def fall_behind(self) -> None:
        """The engine writes more files than it keeps, and nothing is copied."""
        for _ in range(4):
            self.engine.write(10)
            self.engine.rotate()
            self.copying.scan()

    def copy(self) -> None:
        self.copying.scan()
        while self.copying.copy_batch():
            pass

    def check(self) -> None:
        assert self.kubelet.lines() == self.engine.written
        assert self.reports == []
