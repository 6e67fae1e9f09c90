"""Fixtures of the tests that need a machine of their own: one guest for all of them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Generator, Iterator

import pytest

from tests.cri_client import CRI
from tests.engine import pods
from tests.vm.guest import Guest
from tests.vm.running import running

# Seconds for one test; the first one's include the image and the boot. Without KVM everything takes ten times as long.
TIMEOUT = 1800

_guests: list[Guest] = []


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TIMEOUT))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show the end of the server's log and of the console with each failure."""
    report = yield
    if report.failed:
        for guest in _guests:
            report.sections.append(("journal of dockershim", guest.journal("dockershim", "--lines=60", check=False)))
            report.sections.append(("console", guest.console_end()))
    return report


@pytest.fixture(scope="session")
def guest() -> Iterator[Guest]:
    """The guest, booted, with the image of the tests' containers."""
    with running() as booted:
        _guests.append(booted)
        booted.run("crictl", "pull", pods.BUSYBOX)
        yield booted
        _guests.clear()


@pytest.fixture
async def cri(guest: Guest) -> AsyncIterator[CRI]:
    """A client of the server in the guest."""
    async with CRI(guest.cri) as client:
        yield client
