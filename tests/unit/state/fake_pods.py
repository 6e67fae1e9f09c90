"""Pods whose checkpoints are in memory."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from unittest.mock import MagicMock

from checkpoints import Checkpoint
from dockershim.state.pods import Pod, Pods
from dockershim.translate.records import SandboxRecord


class FakeCheckpoints:
    """See ``Checkpoints``. Nothing is written."""

    def __init__(self, known: Iterable[Checkpoint] = ()) -> None:
        self.by_id = {checkpoint.sandbox_id: checkpoint for checkpoint in known}

    async def write(self, checkpoint: Checkpoint) -> None:
        self.by_id[checkpoint.sandbox_id] = checkpoint

    async def remove(self, sandbox_id: str) -> None:
        self.by_id.pop(sandbox_id, None)

    def damaged(self) -> int:
        return 0


def fake_pods(inventory: Any, checkpoints: Iterable[Checkpoint] = (), *, cni: Any = None, pins: Any = None) -> Pods:
    """Pods of an inventory, or of what can ``peek`` and ``listen`` like one."""
    known: Any = FakeCheckpoints(checkpoints)
    return Pods(inventory, known, cni or MagicMock(), pins or MagicMock())


def pod_of(record: SandboxRecord | None, checkpoint: Checkpoint | None = None, *, pins: Any = None) -> Pod:
    """The pod of which the engine has this record, and of which there is this checkpoint. It is not pinned."""
    sandbox_id = record.id if record is not None else checkpoint.sandbox_id if checkpoint is not None else ""
    inventory = MagicMock(peek=lambda _: record)
    known = [checkpoint] if checkpoint is not None else []
    return fake_pods(inventory, known, pins=pins or MagicMock(is_pinned=lambda _: False)).peek(sandbox_id)
