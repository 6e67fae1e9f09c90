"""OOM kills in the kernel's log: a packet pipe stands for /dev/kmsg, which gives one record a read too."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from dockershim.engine.client import Engine
from dockershim.state import oom_kills as module
from dockershim.state.follower import EngineFollower
from dockershim.state.inventory import Inventory
from dockershim.state.oom_kills import OOMKills
from tests.unit.state.fake_engine import CONTAINER, FakeEngine

A, B = "a" * 64, "b" * 64


def kill(path: str, task: str = "sh", cpuset: str = A) -> str:
    return (
        f"6,301902,56452007654,-;oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset={cpuset},mems_allowed=0,"
        f"oom_memcg={path},task_memcg={path},task={task},pid=6383,uid=0\n"
    )


class KernelLog:
    """The write end, and the path of the read end."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe2(os.O_DIRECT | os.O_NONBLOCK | os.O_CLOEXEC)
        self.path = Path(f"/proc/self/fd/{self._read}")

    def write(self, record: str) -> None:
        os.write(self._write, record.encode())

    def close(self) -> None:
        os.close(self._read)
        os.close(self._write)


@pytest.fixture
def log() -> Iterator[KernelLog]:
    log = KernelLog()
    yield log
    log.close()


@pytest.fixture
def kills(log: KernelLog) -> Iterator[OOMKills]:
    kills = OOMKills(log.path)
    yield kills
    kills.close()


@pytest.mark.parametrize(
    "record",
    [
        pytest.param(kill(f"/docker/{A}"), id="cgroupfs"),
        pytest.param(kill(f"/kubepods.slice/kubepods-pod1.slice/docker-{A}.scope"), id="systemd"),
        pytest.param(kill(f"/docker/{A}/its/own/{B}"), id="a cgroup that the container made"),
        pytest.param(kill(f"/docker/{A}", task=",task_memcg=/b"), id="a task with an odd name"),
        pytest.param(
            f"6,1,1,-;oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,global_oom,"
            f"task_memcg=/docker/{A},task=sh,pid=1,uid=0\n",
            id="a machine without memory",
        ),
        pytest.param(f"6,1,1,-;Task in /docker/{A} killed as a result of limit of /docker/{B}\n", id="before 5.0"),
    ],
)
def test_a_kill_is_its_containers(log: KernelLog, kills: OOMKills, record: str) -> None:
    log.write("6,1,1,-;veth8ad03785: entered promiscuous mode\n")
    log.write(record)
    assert kills.has(A)
    assert not kills.has(B)


@pytest.mark.parametrize(
    "record",
    [
        pytest.param(kill("/system.slice/a.service", cpuset=A), id="outside of containers"),
        pytest.param(f"6,1,1,-;sh[1]: segfault in {A}\n", id="no kill"),
        pytest.param("", id="nothing"),
        pytest.param("\udcff\n", id="no text"),
    ],
)
def test_other_records_say_nothing(log: KernelLog, kills: OOMKills, record: str) -> None:
    os.write(log._write, record.encode(errors="surrogateescape"))
    assert not kills.has(A)


def test_a_kill_after_a_question_is_found_by_the_next(log: KernelLog, kills: OOMKills) -> None:
    assert not kills.has(A)
    log.write(kill(f"/docker/{A}"))
    assert kills.has(A)
    assert kills.has(A)


def test_records_that_were_overwritten_are_passed_over(kills: OOMKills, monkeypatch: pytest.MonkeyPatch) -> None:
    reads: Iterator[bytes | OSError] = iter([BrokenPipeError(), kill(f"/docker/{A}").encode(), BlockingIOError()])

    def read(fd: int, size: int) -> bytes:
        found = next(reads)
        if isinstance(found, OSError):
            raise found
        return found

    monkeypatch.setattr(os, "read", read)
    assert kills.has(A)


def test_a_flood_is_read_in_bounded_parts(kills: OOMKills, monkeypatch: pytest.MonkeyPatch) -> None:
    count = 0

    def read(fd: int, size: int) -> bytes:
        nonlocal count
        count += 1
        return kill(f"/docker/{count:064x}").encode()

    monkeypatch.setattr(os, "read", read)
    assert not kills.has(A)
    assert count == module._RECORDS_AT_ONCE
    assert len(kills._killed) == module._KEPT


def test_without_the_log_only_the_engine_tells(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    kills = OOMKills(tmp_path / "kmsg")
    assert not kills.has(A)
    assert "OOM kills are only reported by the engine" in caplog.text


def test_a_log_that_breaks_is_told_once(
    kills: OOMKills, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def read(fd: int, size: int) -> bytes:
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr(os, "read", read)
    assert not kills.has(A)
    assert not kills.has(A)
    assert len(caplog.records) == 1


@pytest.mark.parametrize(("exit_code", "killed"), [(137, True), (1, True), (0, False)])
async def test_a_kill_that_the_engine_missed_is_in_the_record(
    client: Engine,
    fake: FakeEngine,
    follower: EngineFollower,
    log: KernelLog,
    kills: OOMKills,
    exit_code: int,
    killed: bool,
) -> None:
    inventory = Inventory(client, follower, kills.has)
    async with follower:
        assert not (await inventory.container(CONTAINER)).oom_killed
        log.write(kill(f"/docker/{CONTAINER}"))
        fake.end(CONTAINER, exit_code)
        record = await inventory.refresh_container(CONTAINER)
    assert record is not None
    assert (record.exit_code, record.oom_killed) == (exit_code, killed)
