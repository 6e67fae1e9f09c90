"""Fixtures of the tests that need a machine of their own: one guest for all of them, of the kind that --guest names."""

from __future__ import annotations

from collections.abc import AsyncIterator, Generator, Iterator

import pytest

from tests.cri_client import CRI
from tests.engine import pods
from tests.vm.guest import Guest
from tests.vm.image import ENGINES, provided
from tests.vm.leftovers import left_by, memory_files
from tests.vm.machines import MACHINES, QEMU, UML, Machine
from tests.vm.running import Site, site

# Seconds for one test; the first one's include the image and the boot. Without KVM everything takes ten times as long.
TIMEOUT = 1800
# The mark of tests that only qemu can run, with the reason.
ONLY_QEMU = QEMU.name

_sites: list[Site] = []
_LEFT_OUT = pytest.StashKey[list[str]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--guest", choices=sorted(MACHINES), default=UML.name, help="what runs the guest")
    parser.addoption("--guest-engine", choices=ENGINES, default=ENGINES[0], help="version of its Docker Engine")


@pytest.hookimpl(trylast=True)  # what FOCUS and marks leave out has no reason of its own
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TIMEOUT))
    if config.getoption("--guest") == QEMU.name:
        return
    left_out = [item for item in items if item.get_closest_marker(ONLY_QEMU)]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]
    config.stash[_LEFT_OUT] = [f"{item.nodeid}: {_reason(item)}" for item in left_out]


def _reason(item: pytest.Item) -> str:
    marker = item.get_closest_marker(ONLY_QEMU)
    assert marker is not None
    [reason] = marker.args
    return str(reason)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Name what was left out, and why."""
    if left_out := config.stash.get(_LEFT_OUT, []):
        terminalreporter.section("only with --guest=qemu")
        for line in left_out:
            terminalreporter.write_line(line)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show the end of the server's log and of the console with each failure."""
    report = yield
    if report.failed:
        for guest in (guest for place in _sites for guest in place.guests):
            journal = guest.journal("dockershim", "--lines=60", check=False)
            report.sections.append((f"journal of dockershim on {guest.name}", journal))
            report.sections.append((f"console of {guest.name}", guest.console_end()))
    return report


@pytest.fixture(scope="session")
def machine(request: pytest.FixtureRequest) -> Machine:
    """What runs the guests."""
    return MACHINES[request.config.getoption("--guest")]


@pytest.fixture(scope="session")
def place(machine: Machine, request: pytest.FixtureRequest) -> Iterator[Site]:
    """Where the guests of this session are. They leave nothing."""
    memory = memory_files()
    with site(machine, provided(engine=request.config.getoption("--guest-engine"))) as made:
        namespace = made.network.namespace.readlink()
        _sites.append(made)
        yield made
        _sites.clear()
    assert left_by(made, namespace) == []
    assert memory_files() <= memory


@pytest.fixture(scope="session")
def guest(place: Site) -> Guest:
    """The guest, booted, with the image of the tests' containers."""
    booted = place.add()
    booted.boot()
    booted.run("crictl", "pull", pods.BUSYBOX)
    return booted


@pytest.fixture
async def cri(guest: Guest) -> AsyncIterator[CRI]:
    """A client of the server in the guest."""
    async with CRI(guest.cri) as client:
        yield client
