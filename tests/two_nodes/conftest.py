"""Fixtures of the cluster: one for all tests, whose guests leave nothing on the machine."""

from __future__ import annotations

from collections.abc import Generator, Iterator

import pytest

from tests.two_nodes import disk
from tests.two_nodes.cluster import TwoNodes, cluster
from tests.vm.image import provided
from tests.vm.leftovers import left_by, memory_files
from tests.vm.running import Site, site

#: Seconds for one test; the first one's include the cluster, which takes some minutes.
TIMEOUT = 3600

_sites: list[Site] = []


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        item.add_marker(pytest.mark.timeout(TIMEOUT))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show the ends of the logs of kubelet and server on each node with each failure."""
    report = yield
    if report.failed:
        for guest in (guest for place in _sites for guest in place.guests):
            for unit in ("dockershim", "kubelet"):
                journal = guest.journal(unit, "--lines=40", check=False)
                report.sections.append((f"journal of {unit} on {guest.name}", journal))
            report.sections.append((f"console of {guest.name}", guest.console_end()))
    return report


@pytest.fixture(scope="session")
def made() -> Iterator[TwoNodes]:
    """The cluster, with both nodes ready."""
    memory = memory_files()
    with site(disk=provided(disk.kind(), disk.ENGINE)) as place:
        namespace = place.network.namespace.readlink()
        _sites.append(place)
        with cluster(place) as running:
            yield running
        _sites.clear()
    assert left_by(place, namespace) == []
    assert memory_files() <= memory
