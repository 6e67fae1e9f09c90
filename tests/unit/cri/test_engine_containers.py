"""What the engine says when it makes a container."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from dockershim.common.rollback import rollback
from dockershim.cri.engine_containers import EngineContainers


class Engine:
    """Makes every container, with these warnings (Docker Engine API, ContainerCreate)."""

    def __init__(self, warnings: list[str] | None) -> None:
        self.warnings = warnings

    async def post(self, path: str, body: Any, *, params: Any) -> dict[str, Any]:
        return {"Id": "c0" * 32, "Warnings": self.warnings}


@pytest.mark.parametrize(
    "warnings",
    [
        pytest.param(None, id="none, as older engines say it"),
        pytest.param([], id="none"),
        pytest.param(["the kernel has no CPU shares", "nor memory limits"], id="two"),
    ],
)
async def test_what_the_engine_has_left_out_is_logged_once(
    warnings: list[str] | None, caplog: pytest.LogCaptureFixture
) -> None:
    engine: Any = Engine(warnings)
    containers = EngineContainers(engine, SimpleNamespace(), lambda: 5.0)  # type: ignore[arg-type]
    for _ in range(2):
        async with rollback("create", 1.0) as undo:
            assert await containers.creator("name", {"Labels": {}}, undo)() == "c0" * 32

    assert [record.getMessage().partition(", but: ")[2] for record in caplog.records] == (warnings or [])
