"""The follower as a process: what it is told, what it costs, and that another takes its place."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from dockershim.errors import DeadlineExceeded, FailedPrecondition
from dockershim.logs.container_logs import ContainerLogs, Statistics
from dockershim.logs.copying import BATCH
from tests.processes import cpu, descriptors, resident, switches
from tests.unit.logs.engine import Pod
from tests.unit.logs.following import follow, until

pytestmark = pytest.mark.slow

SECONDS_PER_TICK = 1 / os.sysconf("SC_CLK_TCK")


@pytest.fixture
async def logs(tmp_path: Path) -> AsyncIterator[ContainerLogs]:
    async with ContainerLogs(tmp_path / "positions") as service:
        yield service


@pytest.fixture
def pod(tmp_path: Path) -> Pod:
    return Pod(tmp_path, "a")


async def kill(logs: ContainerLogs) -> None:
    before = logs.pid
    os.kill(before, signal.SIGKILL)
    await until(lambda: logs.pid != before)


async def test_one_that_cannot_keep_positions_says_so_in_a_line_and_is_restarted_ever_more_seldom(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "positions"
    folder.touch()
    async with ContainerLogs(folder) as logs:
        logs.start()
        await until(lambda: logs.restarts > 2)
        await asyncio.sleep(2)
        # After 0.05, 0.1, 0.2, 0.4, 0.8 and 1.6 seconds.
        assert logs.restarts <= 6
        folder.unlink()
        async with asyncio.timeout(10):
            assert await logs.statistics(10) == Statistics()
    said = capfd.readouterr().err.splitlines()
    assert set(said) == {f"cannot copy container logs: directory of positions '{folder}': File exists"}


async def test_what_is_forgotten_before_there_is_a_follower_is_not_followed(logs: ContainerLogs, pod: Pod) -> None:
    pod.engine.write(3)
    following = asyncio.create_task(follow(logs, pod))
    await asyncio.sleep(0)
    async with asyncio.timeout(5):
        await logs.forget(pod.id)
        await following
    assert (logs.known(), logs.restarts) == ([], 0)


async def test_lines_arrive_while_they_are_written(logs: ContainerLogs, pod: Pod) -> None:
    pod.engine.write(3)
    await follow(logs, pod)
    assert pod.is_complete(), "what was there before is copied at once"
    for _ in range(3):
        pod.engine.write(2)
        await until(pod.is_complete)
        await asyncio.sleep(0.05)


async def test_an_empty_log_is_there_at_once(logs: ContainerLogs, pod: Pod) -> None:
    await follow(logs, pod)
    assert pod.kubelet.path.read_bytes() == b""
    assert pod.kubelet.path.stat().st_mode & 0o777 == 0o640


async def test_files_that_the_engine_rotates_away_are_read_to_their_end(logs: ContainerLogs, pod: Pod) -> None:
    await follow(logs, pod)
    for _ in range(20):
        pod.engine.write(50)
        pod.engine.rotate()
        # Of files that come and go unseen nothing can be read; the names of open files follow a rename.
        await until(lambda: str(pod.engine.path) in descriptors(logs.pid))
    await logs.finish(pod.id, 5)
    assert pod.is_complete()


async def test_reopen_divides_the_lines(logs: ContainerLogs, pod: Pod) -> None:
    await follow(logs, pod)
    for number in range(1, 4):
        pod.engine.write(10000)
        pod.kubelet.rotate()
        await logs.reopen(pod.id)
        assert pod.kubelet.path.read_bytes() == b""
        assert len(pod.kubelet.lines()) == number * 10000, "all that was there, which takes several batches"
    assert pod.is_complete()


async def test_reopen_of_what_is_not_followed_is_refused(logs: ContainerLogs) -> None:
    with pytest.raises(FailedPrecondition, match="not followed"):
        await logs.reopen("nobody")


async def test_finish_copies_all_and_lets_go(logs: ContainerLogs, pod: Pod) -> None:
    await follow(logs, pod)
    pod.engine.write(5000)
    await asyncio.gather(logs.finish(pod.id, 5), logs.finish(pod.id, 5))
    assert pod.is_complete()
    pods = str(pod.engine.path.parent.parent.parent / "pods")
    assert not [held for held in descriptors(logs.pid) if held.startswith(pods)]
    with pytest.raises(FailedPrecondition, match="not followed"):
        await logs.reopen(pod.id)


async def test_a_container_whose_last_batch_is_large_is_let_go(logs: ContainerLogs, pod: Pod) -> None:
    """A container with a large batch has another turn, unless that batch was its last."""
    await follow(logs, pod)
    os.kill(logs.pid, signal.SIGSTOP)
    pod.engine.write(2000)
    assert BATCH // 2 < pod.engine.path.stat().st_size < BATCH
    finishing = asyncio.create_task(logs.finish(pod.id, 5))
    await asyncio.sleep(0.05)
    os.kill(logs.pid, signal.SIGCONT)
    await finishing
    assert (await logs.statistics(5)).followed == 0
    assert pod.is_complete()
    assert not [held for held in descriptors(logs.pid) if held.startswith(str(pod.kubelet.path.parent))]


async def test_a_finish_that_waits_for_another_has_its_own_deadline(logs: ContainerLogs, pod: Pod) -> None:
    await follow(logs, pod)
    os.kill(logs.pid, signal.SIGSTOP)
    patient = asyncio.create_task(logs.finish(pod.id, 5))
    try:
        await asyncio.sleep(0)
        begun = asyncio.get_running_loop().time()
        with pytest.raises(DeadlineExceeded, match=r"finish within 0\.2 s"):
            await logs.finish(pod.id, 0.2)
        assert asyncio.get_running_loop().time() - begun < 1
    finally:
        os.kill(logs.pid, signal.SIGCONT)
        await patient


async def test_a_finish_outlives_one_that_was_given_up(logs: ContainerLogs, pod: Pod) -> None:
    await follow(logs, pod)
    os.kill(logs.pid, signal.SIGSTOP)
    pod.engine.write(10)
    with pytest.raises(DeadlineExceeded):
        await logs.finish(pod.id, 0.1)
    patient = asyncio.create_task(logs.finish(pod.id, 5))
    await asyncio.sleep(0)
    os.kill(logs.pid, signal.SIGCONT)
    await patient
    assert pod.is_complete()
    assert not logs.source_of(pod.id)


async def counted(logs: ContainerLogs) -> Statistics:
    """The statistics without the rates, which change all the time."""
    return replace(await logs.statistics(1), busiest={})


async def test_statistics_say_what_was_copied_and_what_waits(logs: ContainerLogs, pod: Pod, tmp_path: Path) -> None:
    assert await logs.statistics(1) == Statistics()
    assert logs.pid == 0, "nobody is started to say that there is nothing"
    await follow(logs, pod)
    pod.engine.write(30)
    await until(pod.is_complete)
    size = pod.engine.path.stat().st_size
    assert await counted(logs) == Statistics(bytes=size, lines=30, followed=1)
    assert list((await logs.statistics(1)).busiest) == [pod.id]

    other = Pod(tmp_path, "b")
    other.kubelet.path.parent.rmdir()
    await follow(logs, other)
    other.engine.write(2)
    waiting = other.engine.path.stat().st_size
    assert await counted(logs) == Statistics(
        bytes=size, lines=30, followed=2, blocked=1, unread=waiting, oldest="2026-01-02T03:04:05.000000000"
    )
    await logs.finish(pod.id, 5)
    await logs.forget(other.id)
    assert await counted(logs) == Statistics(bytes=size, lines=30, missing=waiting), "what was done stays done"


async def test_statistics_do_not_wait_for_a_follower_that_stands_still(logs: ContainerLogs, pod: Pod) -> None:
    await follow(logs, pod)
    os.kill(logs.pid, signal.SIGSTOP)
    try:
        with pytest.raises(DeadlineExceeded):
            await logs.statistics(0.1)
    finally:
        os.kill(logs.pid, signal.SIGCONT)
    assert (await logs.statistics(5)).followed == 1


async def test_another_follower_counts_anew_and_is_counted(logs: ContainerLogs, pod: Pod) -> None:
    pod.engine.write(5)
    await follow(logs, pod)
    await kill(logs)
    pod.engine.write(1)
    await until(pod.is_complete)
    assert (logs.restarts, (await logs.statistics(5)).lines) == (1, 1)


async def test_forget_leaves_the_log_and_no_position(logs: ContainerLogs, pod: Pod) -> None:
    pod.engine.write(1)
    await follow(logs, pod)
    assert logs.known() == [pod.id]
    await logs.forget(pod.id)
    assert logs.known() == []
    assert pod.is_complete()


async def test_forget_lets_go_also_of_what_could_not_be_followed(logs: ContainerLogs, tmp_path: Path) -> None:
    (tmp_path / "no-folder").touch()
    await logs.follow("a", str(tmp_path / "no-folder" / "a-json.log"), str(tmp_path), str(tmp_path / "0.log"))
    assert (await logs.statistics(5)).followed == 1
    assert logs.known() == []
    await logs.forget("a")
    assert (await logs.statistics(5)).followed == 0


async def test_a_position_that_cannot_be_removed_ends_nobody(logs: ContainerLogs, pod: Pod, tmp_path: Path) -> None:
    await follow(logs, pod)
    position = tmp_path / "positions" / pod.id
    position.unlink()
    position.mkdir()
    for _ in ("followed", "not followed any more"):
        with pytest.raises(FailedPrecondition, match=str(position)):
            await logs.forget(pod.id)
    assert logs.restarts == 0


async def test_positions_of_containers_that_are_gone_go(logs: ContainerLogs, tmp_path: Path) -> None:
    pods = [Pod(tmp_path, name) for name in "abc"]
    for pod in pods:
        await follow(logs, pod)
        await logs.finish(pod.id, 5)
    await logs.forget_all_but(logs.known(), ["b"])
    assert logs.known() == ["b"]


async def test_a_killed_follower_has_a_successor(logs: ContainerLogs, pod: Pod) -> None:
    await follow(logs, pod)
    for _ in range(3):
        pod.engine.write(300)
        await kill(logs)
        pod.engine.write(300)
    await logs.finish(pod.id, 5)
    assert pod.is_complete()


async def test_a_request_outlives_the_follower(logs: ContainerLogs, pod: Pod) -> None:
    await follow(logs, pod)
    pod.engine.write(100)
    pod.kubelet.rotate()
    os.kill(logs.pid, signal.SIGSTOP)
    reopened = asyncio.create_task(logs.reopen(pod.id))
    await asyncio.sleep(0.05)
    os.kill(logs.pid, signal.SIGKILL)
    await reopened
    assert pod.kubelet.path.read_bytes() == b""
    assert pod.is_complete()


async def test_the_follower_ends_with_its_server(tmp_path: Path, pod: Pod) -> None:
    async with ContainerLogs(tmp_path / "positions") as logs:
        await follow(logs, pod)
        pid = logs.pid
        os.kill(pid, signal.SIGTERM)
        pod.engine.write(1)
        await until(pod.is_complete)
        assert logs.pid == pid, "it does not end with what a service manager sends to all"
    assert not Path(f"/proc/{pid}").exists()


async def test_the_follower_does_not_run_before_others_as_its_server_may(tmp_path: Path, pod: Pod) -> None:
    before = os.getpriority(os.PRIO_PROCESS, 0)
    os.setpriority(os.PRIO_PROCESS, 0, -10)
    try:
        async with ContainerLogs(tmp_path / "positions") as logs:
            await follow(logs, pod)
            assert os.getpriority(os.PRIO_PROCESS, logs.pid) == 0
    finally:
        os.setpriority(os.PRIO_PROCESS, 0, before)


async def test_a_successor_waits_for_its_predecessor(tmp_path: Path, pod: Pod) -> None:
    async with ContainerLogs(tmp_path / "positions") as first, ContainerLogs(tmp_path / "positions") as second:
        await follow(first, pod)
        os.kill(first.pid, signal.SIGSTOP)
        taken = asyncio.create_task(follow(second, pod))
        pod.engine.write(10)
        await asyncio.sleep(0.5)
        assert not taken.done()
        os.kill(first.pid, signal.SIGKILL)
        await taken
        assert pod.is_complete()


async def test_a_log_that_cannot_be_written_is_told_once_and_catches_up(
    logs: ContainerLogs, pod: Pod, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    await follow(logs, pod)
    pod.kubelet.path.unlink()
    pod.kubelet.path.parent.rmdir()
    pod.engine.write(10)
    await until(lambda: "cannot write the logs of 1 containers" in caplog.text)
    with pytest.raises(FailedPrecondition, match="No such file or directory"):
        await logs.reopen(pod.id)
    pod.engine.write(10)
    await asyncio.sleep(1.5)
    pod.kubelet.path.parent.mkdir()
    await until(pod.is_complete)
    await until(lambda: "all container logs can be written again" in caplog.text)
    assert len([record for record in caplog.records if record.levelno >= logging.WARNING]) == 1


async def test_a_hundred_silent_containers_cost_nothing(logs: ContainerLogs, tmp_path: Path) -> None:
    pods = [Pod(tmp_path, f"c{number}") for number in range(100)]
    for pod in pods:
        pod.engine.write(2000 if pod is pods[0] else 200)
        await follow(logs, pod)
    await until(lambda: all(pod.is_complete() for pod in pods), 15)
    before = None
    # On a busy machine it may not yet have had its last turn.
    while before != (before := (cpu(logs.pid), switches(logs.pid))):
        await asyncio.sleep(0.2)
    await asyncio.sleep(1)
    assert (cpu(logs.pid), switches(logs.pid)) == before, "it was woken"
    assert resident(logs.pid) < 20 * 1024 * 1024
