from __future__ import annotations

import pytest

from tests.unit.runc.library import Library


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Library:
    """config.c of dockershim-runc, compiled."""
    return Library(tmp_path_factory.mktemp("runc"))
