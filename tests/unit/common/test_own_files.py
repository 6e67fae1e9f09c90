"""The files that every pod needs: who waits in other threads keeps nobody from them."""

from __future__ import annotations

import asyncio
import threading
from contextvars import ContextVar
from functools import partial
from pathlib import Path

import pytest

import cni
from dockershim.common.own_files import with_own_files, with_own_thread
from dockershim.errors import ResourceExhausted

NAME: ContextVar[str] = ContextVar("NAME")


async def test_they_have_threads_of_their_own(stuck: None) -> None:
    NAME.set("of the caller")
    assert await with_own_files(NAME.get) == "of the caller"


async def test_the_cache_of_cni_has_threads_of_its_own(stuck: None, tmp_path: Path) -> None:
    runtime = cni.Runtime([tmp_path], tmp_path / "cache")
    network = cni.NetworkList.parse(b'{"cniVersion": "1.0.0", "name": "net", "plugins": [{"type": "none"}]}')
    with pytest.raises(cni.OperationFailed, match="plugin none not found"):
        await runtime.delete(network, cni.Attachment("id", "/netns", "eth0"))


async def test_without_threads_the_caller_is_told_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pod whose processes have no limit can take all that the node may have."""

    def fail(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", fail)
    with pytest.raises(ResourceExhausted, match="limit of processes or threads"):
        await with_own_thread(int)


async def test_an_error_of_the_work_itself_stays_what_it_is() -> None:
    def fail() -> None:
        raise RuntimeError("odd")

    with pytest.raises(RuntimeError, match="odd"):
        await with_own_thread(fail)


async def test_a_thread_of_its_own_waits_for_no_other_and_ends() -> None:
    held = threading.Event()
    waiting = [asyncio.create_task(with_own_thread(held.wait, 10)) for _ in range(40)]
    found = await with_own_thread(threading.current_thread)
    NAME.set("of the caller")
    assert await with_own_thread(NAME.get) == "of the caller"
    assert await with_own_thread(partial(max, 1), 2) == 2
    held.set()
    assert await asyncio.gather(*waiting) == [True] * 40
    found.join(10)
    assert not found.is_alive()
    with pytest.raises(ValueError, match="invalid literal"):
        await with_own_thread(int, "x")
