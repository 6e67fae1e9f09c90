"""What every test gets: it fails if it leaves a task behind, and not because the machine is slow."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Generator

import pytest
from hypothesis import HealthCheck, settings

from dockershim.server.cli import set_up_grpc

#: Seconds that gRPC may take on a busy machine.
_NOTICED = 30.0

# A server in a test's own process has gRPC as the real one has it.
set_up_grpc()

# How long an example takes says something about the machine; a test as a whole has its limit from pytest-timeout.
settings.register_profile("dockershim", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("dockershim")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """The processes that tests are shared among tell their reports in UTF-8, which hostile text in a log may not be."""
    report = yield
    report.sections = [(name, text.encode("utf-8", "replace").decode()) for name, text in report.sections]
    return report


@pytest.fixture(autouse=True)
def tasks_are_compared(request: pytest.FixtureRequest) -> None:
    """Have ``no_task_left`` for what runs in a loop: to make one for each other test takes as long as most of them."""
    if request.node.get_closest_marker("asyncio"):
        request.getfixturevalue("no_task_left")


@pytest.fixture
async def no_task_left() -> AsyncIterator[None]:
    """Compare the tasks before and after; a loop that a whole session shares may have had some before."""
    before = asyncio.all_tasks()
    yield
    left = asyncio.all_tasks() - before - {asyncio.current_task()}
    # gRPC's own tasks of a call that was cancelled end when its core has noticed.
    if ending := {task for task in left if getattr(task.get_coro(), "__qualname__", "").startswith("_AioCall.")}:
        ended, _ = await asyncio.wait(ending, timeout=_NOTICED)
        left -= ended
    assert not left, f"tasks left over: {sorted(task.get_name() for task in left)}"
