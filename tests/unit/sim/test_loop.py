"""Event loops with virtual time and a drawn order."""

from __future__ import annotations

import asyncio
import random
import secrets
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.sim.loop import Cancelled, Died, SimLoop, Simulation, Stuck, Temper, TooLong, across

STORM = Temper(disorder=1.0)
CALM = Temper(disorder=0.0, stalls=0.0)


def orders(work: Callable[[list[int]], Awaitable[None]], temper: Temper, seeds: int = 50) -> set[tuple[int, ...]]:
    found = set()
    for seed in range(seeds):
        order: list[int] = []

        async def main(order: list[int] = order) -> None:
            await work(order)

        Simulation(seed, temper=temper).run(main)
        found.add(tuple(order))
    return found


async def three_tasks(order: list[int]) -> None:
    async def one(number: int) -> None:
        order.append(number)

    await asyncio.gather(*(one(number) for number in range(3)))


async def three_callbacks(order: list[int]) -> None:
    for number in range(3):
        asyncio.get_running_loop().call_soon(order.append, number)
    await asyncio.sleep(1)


async def three_threads(order: list[int]) -> None:
    await asyncio.gather(*(asyncio.to_thread(order.append, number) for number in range(3)))


async def three_in_one_thread(order: list[int]) -> None:
    loop, thread = asyncio.get_running_loop(), ThreadPoolExecutor(1)
    await asyncio.gather(*(loop.run_in_executor(thread, order.append, number) for number in range(3)))


async def a_callback_and_the_task_behind(order: list[int]) -> None:
    async def awaits(future: asyncio.Future[None]) -> None:
        await future
        order.append(1)

    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    future.add_done_callback(lambda _: order.append(0))
    waiting = asyncio.create_task(awaits(future))
    await asyncio.sleep(0.1)
    future.set_result(None)
    await waiting


@pytest.mark.parametrize(
    ("work", "temper", "count"),
    [
        pytest.param(three_tasks, STORM, 6, id="tasks in any order"),
        pytest.param(three_tasks, CALM, 1, id="tasks in the order of asyncio"),
        pytest.param(three_callbacks, STORM, 1, id="callbacks only in their order"),
        pytest.param(three_threads, STORM, 6, id="threads in any order"),
        pytest.param(three_in_one_thread, STORM, 1, id="one thread works in the order of its orders"),
        pytest.param(a_callback_and_the_task_behind, STORM, 1, id="no task before an earlier callback"),
    ],
)
def test_the_order(work: Callable[[list[int]], Awaitable[None]], temper: Temper, count: int) -> None:
    assert len(orders(work, temper)) == count


def test_time_and_what_is_random_are_those_of_the_run() -> None:
    def look() -> tuple[Any, ...]:
        return time.monotonic(), time.time(), time.time_ns(), random.random(), secrets.token_hex(4)

    async def main() -> tuple[Any, ...]:
        begun = time.perf_counter()
        await asyncio.sleep(3600)
        time.sleep(5)  # noqa: ASYNC251  # of the simulation
        assert 3605 < time.perf_counter() - begun < 3606
        return look()

    begun, state = time.monotonic(), random.getstate()
    runs = [Simulation(seed).run(main) for seed in (1, 1, 2)]
    assert runs[0] == runs[1] != runs[2]
    assert time.monotonic() - begun < 60
    assert random.getstate() == state
    assert look()[0] != runs[0][0]


class Killed:
    """A process that waits in a block, in a thread, for a timer and for a task, until it is killed."""

    def __init__(self, loop: SimLoop) -> None:
        self.loop = loop
        self.done: list[str] = []

    async def live(self) -> None:
        self.loop.call_later(1, self.done.append, "timer")
        task = asyncio.create_task(self.tick())
        try:
            await asyncio.to_thread(self.done.append, "thread")
            await task
        finally:
            self.done.append("finally")

    async def tick(self) -> None:
        while True:
            await asyncio.sleep(0.2)
            self.done.append("tick")


def test_a_killed_process_does_nothing_more() -> None:
    simulation = Simulation(3)
    process = Killed(simulation.process("server"))

    async def main() -> list[str]:
        calling = asyncio.create_task(across(process.loop, process.live))
        await asyncio.sleep(0.5)
        simulation.kill(process.loop)
        with pytest.raises(Died):
            await calling
        with pytest.raises(Died):
            await across(process.loop, process.live)
        await asyncio.sleep(60)
        return list(process.done)

    assert simulation.run(main) == ["thread", "tick", "tick"]
    assert not simulation.complaints


def test_a_process_that_is_killed_cancels_its_requests() -> None:
    simulation = Simulation(3)
    engine, server = simulation.process("engine"), simulation.process("server")
    ends: list[str] = []

    async def serve(name: str) -> None:
        try:
            await asyncio.sleep(10)
            ends.append(f"{name} is done")
        except asyncio.CancelledError:
            ends.append(f"{name} is cancelled")
            raise

    async def ask() -> None:
        await asyncio.gather(
            across(engine, lambda: serve("request")), across(engine, lambda: serve("plugin"), outlives=True)
        )

    async def main() -> None:
        calling = asyncio.create_task(across(server, ask))
        await asyncio.sleep(1)
        simulation.kill(server)
        await asyncio.wait([calling])
        calling.exception()
        await asyncio.sleep(20)

    simulation.run(main)
    assert ends == ["request is cancelled", "plugin is done"]


def test_what_another_process_answers() -> None:
    simulation = Simulation(3)
    other = simulation.process("other")

    async def answer() -> str:
        assert asyncio.get_running_loop() is other
        await asyncio.sleep(1)
        return "answer"

    async def fail() -> None:
        raise ValueError("no")

    async def cancel_itself() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(1)

    async def main() -> None:
        assert await across(other, answer) == "answer"
        with pytest.raises(ValueError, match="no"):
            await across(other, fail)
        with pytest.raises(Cancelled):
            await across(other, cancel_itself)

    simulation.run(main)


def test_sockets_of_processes() -> None:
    simulation = Simulation(3)
    server = simulation.process("server")

    async def echo(theirs: socket.socket) -> None:
        reader, writer = await asyncio.open_connection(sock=theirs)
        while data := await reader.read(100):
            writer.write(data)
        writer.close()

    async def main() -> list[bytes]:
        ours, theirs = socket.socketpair()
        serving = asyncio.create_task(across(server, lambda: echo(theirs)))
        reader, writer = await asyncio.open_connection(sock=ours)
        writer.write(b"hello")
        found = [await reader.read(100)]
        simulation.kill(server)
        found.append(await reader.read(100))
        writer.close()
        await asyncio.wait([serving])
        serving.exception()
        return found

    assert simulation.run(main) == [b"hello", b""]


def test_nothing_goes_on_forever() -> None:
    async def wait() -> None:
        await asyncio.get_running_loop().create_future()

    async def spin() -> None:
        while True:  # noqa: ASYNC110  # it waits for nothing
            await asyncio.sleep(0)

    with pytest.raises(Stuck, match="wait"):
        Simulation(1).run(wait)
    with pytest.raises(TooLong):
        Simulation(1, most_steps=1000).run(spin)
    with pytest.raises(TooLong, match="clock"):
        Simulation(1, most_seconds=0.01).run(spin)


def test_a_generator_that_nobody_ends_is_ended_by_its_loop() -> None:
    ends: list[str] = []

    async def count() -> AsyncIterator[int]:
        try:
            for number in range(3):
                yield number
        finally:
            await asyncio.sleep(0)
            ends.append("ended")

    async def main() -> None:
        async for _ in count():
            break
        await asyncio.sleep(1)

    Simulation(1).run(main)
    assert ends == ["ended"]


def test_a_thread_that_has_not_begun_can_be_cancelled() -> None:
    done: list[int] = []

    async def main() -> None:
        thread = ThreadPoolExecutor(1)
        loop = asyncio.get_running_loop()
        first, second = (loop.run_in_executor(thread, done.append, number) for number in range(2))
        second.cancel()
        await first
        await asyncio.sleep(1)
        thread.shutdown()
        with pytest.raises(RuntimeError, match="after shutdown"):
            loop.run_in_executor(thread, done.append, 3)

    Simulation(1).run(main)
    assert done == [0]
