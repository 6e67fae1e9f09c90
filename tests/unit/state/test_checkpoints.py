"""Checkpoints in memory are those on the disk, also if a caller goes or the disk fails."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from checkpoints import Checkpoint, CheckpointError, Store
from dockershim.errors import ShimError
from dockershim.state.checkpoints import Checkpoints

POD = Checkpoint(sandbox_id="5a" * 32, name="web", namespace="default")


class SlowStore(Store):
    """A store whose writes begin, wait until they are let ``go_on``, and may fail."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.begun, self.go_on = threading.Event(), threading.Event()
        self.go_on.set()
        self.fails = False

    def write(self, checkpoint: Checkpoint) -> None:
        self.begun.set()
        self.go_on.wait()
        if self.fails:
            raise CheckpointError("the disk is full")
        super().write(checkpoint)

    def remove(self, sandbox_id: str) -> None:
        if self.fails:
            raise CheckpointError("the disk is read-only")
        super().remove(sandbox_id)


@pytest.fixture
def store(tmp_path: Path) -> SlowStore:
    return SlowStore(tmp_path / "sandbox")


async def test_a_write_whose_caller_goes_is_done_before_the_call_ends(store: SlowStore) -> None:
    """Else the undo of the call would remove the file before it is there."""
    made = Checkpoints(store)
    store.go_on.clear()
    writing = asyncio.create_task(made.write(POD))
    await asyncio.to_thread(store.begun.wait)
    for _ in range(3):
        writing.cancel()
        await asyncio.sleep(0)
    try:
        assert not writing.done()
        assert POD.sandbox_id not in made.by_id
    finally:
        store.go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await writing
    assert store.read(POD.sandbox_id) == POD
    # What is on the disk is known: the next server reads it, and this one must not see less.
    assert made.by_id == {POD.sandbox_id: POD}


async def test_what_could_not_be_written_is_not_known(store: SlowStore) -> None:
    made = Checkpoints(store)
    store.fails = True
    with pytest.raises(ShimError, match=r"cannot write .*: the disk is full"):
        await made.write(POD)
    assert made.by_id == {}


async def test_what_could_not_be_removed_is_still_known(store: SlowStore) -> None:
    made = Checkpoints(store)
    await made.write(POD)
    store.fails = True
    with pytest.raises(ShimError, match=r"cannot remove .*: the disk is read-only"):
        await made.remove(POD.sandbox_id)
    assert made.by_id == {POD.sandbox_id: POD}
    store.fails = False
    await made.remove(POD.sandbox_id)
    assert (made.by_id, Checkpoints(store).by_id) == ({}, {})


async def test_a_pod_of_another_dockershim_is_removed_there_too(store: SlowStore, tmp_path: Path) -> None:
    other = Store(tmp_path / "other" / "sandbox")
    other.write(POD)
    made = Checkpoints(store, [tmp_path / "other"])
    assert made.by_id == {POD.sandbox_id: POD}
    await made.remove(POD.sandbox_id)
    assert other.load_all() == ([], [])
