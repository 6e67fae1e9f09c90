"""The lock is held by a plugin when the runtime that started it is gone."""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import cni
from tests.unit.cni.fakes import NETNS, announced, install_steered, network, runs, steer

pytestmark = pytest.mark.slow


def attachment(tmp_path: Path) -> cni.Attachment:
    return cni.Attachment("c1", NETNS, lock_path=tmp_path / "lock")


def runtime(tmp_path: Path, timeout: float = 5.0) -> cni.Runtime:
    return cni.Runtime([tmp_path / "bin"], tmp_path / "cache", timeout=timeout)


def locked(path: Path) -> bool:
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


@contextmanager
def held(path: Path) -> Iterator[None]:
    with path.open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


async def test_delete_waits_for_the_plugin_of_a_killed_runtime(tmp_path: Path) -> None:
    plugin = install_steered(tmp_path / "bin", "bridge", sleep=1.0, announce=str(tmp_path / "adding"))
    server = textwrap.dedent(f"""
        import asyncio
        from pathlib import Path
        import cni
        net = cni.NetworkList.parse({{"cniVersion": "1.0.0", "name": "podnet", "plugins": [{{"type": "bridge"}}]}})
        folder = Path({str(tmp_path)!r})
        att = cni.Attachment("c1", {NETNS!r}, lock_path=folder / "lock")
        asyncio.run(cni.Runtime([folder / "bin"], folder / "cache").add(net, att))
    """)
    process = subprocess.Popen(
        [sys.executable, "-c", server],
        env={**os.environ, "PYTHONPATH": str(Path(cni.__file__).parents[1])},
    )
    orphan = await announced(tmp_path / "adding")
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert runs(orphan)
    assert locked(tmp_path / "lock")
    steer(plugin, announce=str(tmp_path / "deleting"))
    deletion = asyncio.create_task(runtime(tmp_path).delete(network("bridge"), attachment(tmp_path)))
    await asyncio.sleep(0.1)
    assert not (tmp_path / "deleting").exists()
    await deletion
    assert (tmp_path / "deleting").exists()
    assert not runs(orphan)


async def test_nothing_is_attached_beside_the_garbage_collection_of_a_killed_runtime(tmp_path: Path) -> None:
    """It does not know of new attachments, and would remove them."""
    install_steered(tmp_path / "bin", "bridge", announce=str(tmp_path / "adding"))
    (tmp_path / "cache").mkdir()
    ours = runtime(tmp_path)
    with held(tmp_path / "cache/.lock"):
        adding = asyncio.create_task(ours.add(network("bridge"), attachment(tmp_path)))
        await asyncio.sleep(0.1)
        assert not (tmp_path / "adding").exists()
    await adding
    # There is no earlier one any more.
    with held(tmp_path / "cache/.lock"):
        await asyncio.wait_for(ours.delete(network("bridge"), attachment(tmp_path)), 1.0)


async def test_the_lock_of_a_garbage_collection_is_held_while_its_plugins_run_and_no_longer(tmp_path: Path) -> None:
    install_steered(tmp_path / "bin", "bridge", sleep=0.3, announce=str(tmp_path / "running"))
    collecting = asyncio.create_task(runtime(tmp_path).gc(network("bridge", version="1.1.0"), lambda _: []))
    await announced(tmp_path / "running")
    assert locked(tmp_path / "cache/.lock")
    await collecting
    assert not locked(tmp_path / "cache/.lock")


async def test_a_plugin_holds_the_lock_while_it_runs_and_no_longer(tmp_path: Path) -> None:
    install_steered(tmp_path / "bin", "bridge", sleep=0.3, announce=str(tmp_path / "running"))
    add = asyncio.create_task(runtime(tmp_path).add(network("bridge"), attachment(tmp_path)))
    await announced(tmp_path / "running")
    assert locked(tmp_path / "lock")
    await add
    assert not locked(tmp_path / "lock")


async def test_a_daemon_that_a_plugin_left_on_purpose_does_not_keep_it(tmp_path: Path) -> None:
    install_steered(tmp_path / "bin", "bridge", background=3)
    await runtime(tmp_path).add(network("bridge"), attachment(tmp_path))
    assert not locked(tmp_path / "lock")


async def test_what_survives_a_kill_keeps_it(tmp_path: Path) -> None:
    plugin = tmp_path / "bin/bridge"
    plugin.parent.mkdir()
    # A session of its own is out of reach of the kill.
    plugin.write_text("#!/bin/sh\nsetsid sleep 5 &\nsleep 60\n")
    plugin.chmod(0o755)
    with pytest.raises(cni.PluginTimeout):
        await runtime(tmp_path, timeout=1.0).add(network("bridge"), attachment(tmp_path))
    assert locked(tmp_path / "lock")


async def test_waiting_is_bounded_and_then_the_work_goes_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    install_steered(tmp_path / "bin", "bridge")
    begin = time.monotonic()
    with held(tmp_path / "lock"):
        await runtime(tmp_path, timeout=3.0).delete(network("bridge"), attachment(tmp_path))
    assert time.monotonic() - begin >= 1.5
    assert "still holds" in caplog.text


async def test_waiting_does_not_block_the_loop_and_can_be_cancelled(tmp_path: Path) -> None:
    install_steered(tmp_path / "bin", "bridge")
    with held(tmp_path / "lock"):
        deletion = asyncio.create_task(runtime(tmp_path).delete(network("bridge"), attachment(tmp_path)))
        begin = time.monotonic()
        await asyncio.sleep(0.05)
        assert time.monotonic() - begin < 2
        deletion.cancel()
        with pytest.raises(asyncio.CancelledError):
            await deletion
    assert not locked(tmp_path / "lock")


@pytest.mark.parametrize("name", ["missing/lock", "link"])
async def test_a_lock_that_cannot_be_opened_is_no_obstacle(
    tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    install_steered(tmp_path / "bin", "bridge")
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    await runtime(tmp_path).delete(network("bridge"), cni.Attachment("c1", lock_path=tmp_path / name))
    assert "cannot lock" in caplog.text
    assert not (tmp_path / "elsewhere").exists()


async def test_the_file_stays_for_its_owner(tmp_path: Path) -> None:
    install_steered(tmp_path / "bin", "bridge")
    await runtime(tmp_path).add(network("bridge"), attachment(tmp_path))
    await runtime(tmp_path).delete(network("bridge"), attachment(tmp_path))
    assert (tmp_path / "lock").exists()
