"""Making engine containers; both sandboxes and containers need it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from dockershim.rollback import Rollback, complete
from dockershim.runtime.node import Node
from dockershim.runtime.removal import remove_container


def creator(node: Node, name: str, body: dict[str, Any], undo: Rollback) -> Callable[[], Awaitable[str]]:
    """What creates the container of this name, may be called again after a failure, and gives its id.

    A create is never abandoned half-way: its result is what is undone.
    """
    created: list[str] = []

    async def remove_created() -> None:
        for container_id in created:
            await remove_container(node, container_id)

    async def post() -> None:
        answer = await node.engine.post("/containers/create", body, params={"name": name})
        created.append(answer["Id"])

    async def create() -> str:
        await complete(post(), f"create {name}")
        return created[0]

    undo.push(f"remove {name}", remove_created)
    return create
