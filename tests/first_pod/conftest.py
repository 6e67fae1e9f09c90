"""The option --guest, as the tests in tests/vm have it."""

from __future__ import annotations

import pytest

from tests.vm.machines import MACHINES, UML


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--guest", choices=sorted(MACHINES), default=UML.name, help="what runs the guest")
