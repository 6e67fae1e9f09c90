"""Making engine containers; both sandboxes and containers need it."""

from __future__ import annotations

import json
import secrets
from collections.abc import Awaitable, Callable
from typing import Any

from dockershim.errors import DeadlineExceeded, EngineFailure, Unavailable
from dockershim.rollback import Rollback, complete
from dockershim.runtime.node import Node
from dockershim.runtime.removal import remove_container
from dockershim.translate.names import CREATE_LABEL


def creator(node: Node, name: str, body: dict[str, Any], undo: Rollback) -> Callable[[], Awaitable[str]]:
    """What creates the container of this name, may be called again after a failure, and gives its id.

    A create is never abandoned half-way: its result is what is undone. Where the engine's answer is lost, the
    container that it may have made is found by a label of this create, as the name may be of an older one.
    """
    nonce = secrets.token_hex(8)
    marked = {**body, "Labels": {**body["Labels"], CREATE_LABEL: nonce}}
    created: list[str] = []
    unanswered = False

    async def remove_created() -> None:
        found = list(created)
        if unanswered:
            filters = json.dumps({"label": [f"{CREATE_LABEL}={nonce}"]})
            listed = await node.engine.get("/containers/json", params={"all": "1", "filters": filters})
            found = [one["Id"] for one in listed]
        for container_id in found:
            await remove_container(node, container_id)

    async def post() -> None:
        nonlocal unanswered
        try:
            answer = await node.engine.post("/containers/create", marked, params={"name": name})
        except (Unavailable, DeadlineExceeded, EngineFailure):
            unanswered = True
            raise
        created.append(answer["Id"])

    async def create() -> str:
        await complete(post(), f"create {name}")
        return created[0]

    undo.push(f"remove {name}", remove_created)
    return create
