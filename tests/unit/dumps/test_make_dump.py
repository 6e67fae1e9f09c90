"""A whole dump without an engine: a shim and an OCI runtime of the test."""

from __future__ import annotations

import asyncio
import io
import json
import os
import signal
import subprocess
import tarfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dockershim.dumps import dump_process
from dockershim.dumps.archive import Target
from dockershim.dumps.dump_process import Order, bind_mounts
from dockershim.dumps.make_dump import make_dump
from dockershim.dumps.problems import Kind, Problem
from dockershim.errors import (
    AlreadyExists,
    EngineFailure,
    FailedPrecondition,
    InvalidArgument,
    ResourceExhausted,
    Unavailable,
)

ID = "c0" * 32
WORKS = """\
#!/bin/sh
test "$*" = "--root {root}/moby checkpoint --leave-running --file-locks --image-path {folder}/checkpoint \
--work-path {folder} {id}" || exit 9
mkdir {folder}/checkpoint; echo memory > {folder}/checkpoint/pages-1.img; echo fine > {folder}/dump.log
"""
HANGS = """\
#!/bin/sh
sleep 1000 & echo $! > {folder}.helper; wait
"""
FAILS = """\
#!/bin/sh
printf '(00.1) Error (criu/x.c:1): a \\033[1m reason\\n(00.1) more\\n' > {folder}/dump.log; exit 1
"""


@pytest.fixture
def order(tmp_path: Path) -> Iterator[Order]:
    """What is asked for; the runtime of the container is ``tmp_path/runtime``."""
    bundle = tmp_path / "moby" / ID
    bundle.mkdir(parents=True)
    shim_with_child = ["sh", "-c", "sleep 1000 & echo $!; exec sleep 1000"]
    shim = subprocess.Popen(shim_with_child, cwd=bundle, stdout=subprocess.PIPE, start_new_session=True)
    assert shim.stdout is not None
    pid = int(shim.stdout.readline())
    mounts = [{"destination": "/etc/hosts", "type": "bind", "source": str(tmp_path)}]
    (bundle / "config.json").write_text(json.dumps({"mounts": mounts, "annotations": {"old": "1"}}))
    (bundle / "init.pid").write_text(str(pid))
    (bundle / "runtime").write_text(str(tmp_path / "runtime"))
    (bundle / "options.json").write_text(json.dumps({"root": str(tmp_path / "root")}))
    (tmp_path / "folder").mkdir()
    (tmp_path / "upper").mkdir()
    (tmp_path / "upper" / "file").touch()
    (tmp_path / "main.log").write_text("a line\n")
    try:
        yield Order(
            container_id=ID,
            pid=pid,
            location=str(tmp_path / "x.tar"),
            folder=str(tmp_path / "folder"),
            upper=str(tmp_path / "upper"),
            log=str(tmp_path / "main.log"),
            log_directory=str(tmp_path),
            memory=4096,
            files={"config.dump": {"id": ID}},
            annotations={"new": "2"},
        )
    finally:
        os.killpg(shim.pid, signal.SIGKILL)
        shim.wait()
        shim.stdout.close()


def runtime(tmp_path: Path, script: str) -> None:
    program = tmp_path / "runtime"
    program.write_text(script.format(root=tmp_path / "root", folder=tmp_path / "folder", id=ID))
    program.chmod(0o755)


async def nothing() -> None:
    """The container may run on."""


async def test_the_container_may_run_on_before_the_archive_is_written(order: Order, tmp_path: Path) -> None:
    runtime(tmp_path, WORKS)
    seen: list[bool] = []

    async def collected() -> None:
        seen.append((tmp_path / "folder" / "rootfs-diff.tar").exists())

    size = await make_dump(order, collected)
    assert seen == [True]
    assert (tmp_path / "x.tar").stat().st_size == size
    with tarfile.open(tmp_path / "x.tar") as archive:
        assert archive.getnames() == [
            *("config.dump", "spec.dump", "bind.mounts", "dump.log", "container.log", "rootfs-diff.tar"),
            *("checkpoint", "checkpoint/pages-1.img"),
        ]
        spec = archive.extractfile("spec.dump")
        assert spec is not None
        assert json.load(spec)["annotations"] == {"old": "1", "new": "2"}


async def test_without_a_log_there_is_none(order: Order, tmp_path: Path) -> None:
    runtime(tmp_path, WORKS)
    (tmp_path / "link.log").symlink_to(tmp_path / "main.log")
    await make_dump(replace(order, log=str(tmp_path / "link.log")), nothing)
    with tarfile.open(tmp_path / "x.tar") as archive:
        assert "container.log" not in archive.getnames()


@pytest.mark.parametrize(
    ("script", "changed", "kind", "text"),
    [
        pytest.param(FAILS, {}, EngineFailure, "x.c:1): a  [1m reason", id="criu says why, and no control characters"),
        pytest.param(
            "#!/bin/sh\necho no >&2; exit 1", {}, EngineFailure, "still running: no", id="the runtime says it"
        ),
        pytest.param("#!/bin/sh\nexit 1", {}, EngineFailure, "reports no reason", id="it does not say why"),
        pytest.param("#!/missing\n", {}, FailedPrecondition, "cannot run", id="the runtime is gone"),
        pytest.param(WORKS, {"pid": 1 << 30}, FailedPrecondition, "has exited", id="the container is gone"),
        pytest.param(WORKS, {"location": "/proc/x"}, FailedPrecondition, "location", id="no file can be there"),
        pytest.param(WORKS, {"location": "/missing/x"}, InvalidArgument, "location", id="no folder"),
        pytest.param(WORKS, {"location": __file__}, AlreadyExists, __file__, id="a file is there"),
    ],
)
async def test_a_failure_is_told_with_its_reason(
    order: Order, tmp_path: Path, script: str, changed: dict[str, Any], kind: type[Exception], text: str
) -> None:
    runtime(tmp_path, script)
    with pytest.raises(kind) as failure:
        await make_dump(replace(order, **changed), nothing)
    assert text in str(failure.value)
    assert not (tmp_path / "x.tar").exists()


async def test_a_failure_with_a_long_path_is_cut(order: Order, tmp_path: Path) -> None:
    runtime(tmp_path, WORKS)
    here = tmp_path / "upper"
    for _ in range(12):
        here = here / ("\n" * 250)
        here.mkdir()
    with (here / "sparse").open("wb") as file:
        file.truncate(1 << 43)
    with pytest.raises(ResourceExhausted) as failure:
        await make_dump(order, nothing)
    assert len(str(failure.value)) == 4000


async def test_a_runtime_that_hangs_is_ended_with_its_helpers(order: Order, tmp_path: Path) -> None:
    runtime(tmp_path, HANGS)
    helper = tmp_path / "folder.helper"
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1):
            await make_dump(order, nothing)
    assert not _runs(int(helper.read_text()))
    assert not (tmp_path / "x.tar").exists()


def test_no_runtime_is_started_once_the_dump_is_to_end(tmp_path: Path) -> None:
    """The server may go between the begin of the process and that of the runtime. Nobody would end criu then."""
    made = dump_process.Runtime()
    made.kill()
    command = ["touch", str(tmp_path / "started")]
    assert made.run(command, tmp_path / "output", tmp_path / "criu.conf") == -signal.SIGKILL
    assert not (tmp_path / "started").exists()


def test_the_server_hears_that_all_is_collected_before_the_archive_is_written(
    order: Order, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []

    class Archive(Target):
        def write(self, *_: object) -> int:
            done.append("write")
            return 5

    class Control:
        def makefile(self, mode: str) -> io.BytesIO:
            return io.BytesIO(order.encode())

        def sendall(self, line: bytes) -> None:
            done.extend(json.loads(line))

    monkeypatch.setattr(dump_process, "Target", Archive)
    monkeypatch.setattr(dump_process, "collect", lambda *_: done.append("collect"))
    monkeypatch.setattr(dump_process, "_end_with_server", lambda *_: None)
    control: Any = Control()
    dump_process.serve(control)
    assert done == ["collect", "collected", "write", "size"]


async def test_a_server_that_cannot_let_the_container_run_on_ends_the_dump(order: Order, tmp_path: Path) -> None:
    runtime(tmp_path, WORKS)

    async def fail() -> None:
        raise Unavailable("the engine is away")

    with pytest.raises(Unavailable, match="the engine is away"):
        await make_dump(order, fail)


def _runs(pid: int) -> bool:
    """Whether a process that was killed is still there a moment later: its new parent has to take note of its end."""
    end = time.monotonic() + 5
    while time.monotonic() < end:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return False
        except OSError:
            return False
        time.sleep(0.01)
    return True


def test_bind_mounts_are_described_whatever_their_names(tmp_path: Path) -> None:
    strange = tmp_path / 'a\n"b\udcff'
    strange.mkdir(mode=0o750)
    (tmp_path / "file").touch(0o640)
    mounts = [
        {"type": "bind", "source": str(strange), "destination": "/../x"},
        {"type": "bind", "source": str(tmp_path / "file"), "destination": "/file"},
        {"type": "bind", "source": "/missing", "destination": "/dev/shm"},
        {"type": "tmpfs", "source": "tmpfs", "destination": "/tmp"},
    ]
    found = bind_mounts(mounts)
    assert json.loads(json.dumps(found)) == found
    assert found == [
        {"source": str(strange), "destination": "/../x", "file_type": "directory", "permissions": 0o750},
        {"source": str(tmp_path / "file"), "destination": "/file", "file_type": "file", "permissions": 0o640},
    ]


@pytest.mark.parametrize("source", ["/missing", "a\0b", "x" * 5000])
def test_a_mount_whose_source_cannot_be_looked_at_is_refused(source: str) -> None:
    with pytest.raises(Problem, match="the mount '/x'") as failure:
        bind_mounts([{"type": "bind", "source": source, "destination": "/x"}])
    assert failure.value.kind == Kind.STATE
