"""Making engine containers; both sandboxes and containers need it."""

from __future__ import annotations

import json
import logging
import secrets
from collections.abc import Awaitable, Callable
from functools import cache
from typing import Any

from dockershim.common.rollback import Rollback, complete
from dockershim.cri.node import Node
from dockershim.cri.removal import remove_container
from dockershim.errors import DeadlineExceeded, EngineFailure, InvalidArgument, Unavailable
from dockershim.translate.container import without_log_mode
from dockershim.translate.names import CREATE_LABEL

logger = logging.getLogger(__name__)


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
            answer = await _post(node, name, marked)
        except (Unavailable, DeadlineExceeded, EngineFailure):
            unanswered = True
            raise
        created.append(answer["Id"])

    async def create() -> str:
        await complete(post(), f"create {name}")
        return created[0]

    undo.push(f"remove {name}", remove_created)
    return create


async def _post(node: Node, name: str, body: dict[str, Any]) -> Any:
    """Where the node's daemon.json has max-buffer-size, the engine refuses each container whose log is to block."""
    try:
        return await node.engine.post("/containers/create", body, params={"name": name})
    except InvalidArgument:
        if (lenient := without_log_mode(body)) is None:
            raise
        answer = await node.engine.post("/containers/create", lenient, params={"name": name})
    _tell_of_mode()
    return answer


@cache
def _tell_of_mode() -> None:
    logger.warning(
        "the engine takes containers only with the log mode of its daemon.json, which loses lines of those that write"
        " fast: remove max-buffer-size and mode from its log-opts"
    )
