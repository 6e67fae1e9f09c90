"""Running real processes: what a plugin gets, what is kept of its output, and how it is ended."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import shlex
import signal
import time
from pathlib import Path

import pytest

import cni
from tests.processes import descriptors
from tests.unit.cni.fakes import announced, ended, install_steered, runs

ENVIRONMENT = {"CNI_COMMAND": "ADD", "CNI_CONTAINERID": "c1", "CNI_IFNAME": "eth0"}


def invocation(plugin: Path, timeout: float = 5.0, config: bytes = b'{"type":"x"}') -> cni.Invocation:
    return cni.Invocation(plugin, ENVIRONMENT, config, timeout)


async def test_plugin_gets_environment_configuration_and_a_session_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CNI_ARGS", "of=the-server")
    plugin = install_steered(tmp_path, "p", record=str(tmp_path / "seen"), stdout="{}\n", stderr="a note")
    config = json.dumps({"type": "p", "filler": "x" * 300_000}).encode()
    answer = await cni.SubprocessExecutor().run(invocation(plugin, config=config))
    assert answer == cni.Completion(0, b"{}\n", b"a note")
    seen = json.loads((tmp_path / "seen").read_text())
    assert seen["config"] == json.loads(config)
    assert seen["env"] == {**ENVIRONMENT, "CNI_ARGS": "of=the-server"}
    assert seen["session"] is True


async def test_standard_input_can_be_opened_by_its_name(tmp_path: Path) -> None:
    plugin = tmp_path / "shell"
    plugin.write_text("#!/bin/sh\ncat /dev/stdin\n")
    plugin.chmod(0o755)
    assert (await cni.SubprocessExecutor().run(invocation(plugin))).stdout == b'{"type":"x"}'


@pytest.mark.parametrize("status", [0, 1, 77])
async def test_exit_status_and_output_are_those_of_the_plugin(tmp_path: Path, status: int) -> None:
    plugin = install_steered(tmp_path, "p", stdout="out", stderr="err", exit=status)
    assert await cni.SubprocessExecutor().run(invocation(plugin)) == cni.Completion(status, b"out", b"err")


async def test_a_signal_is_a_negative_status(tmp_path: Path) -> None:
    plugin = tmp_path / "shell"
    plugin.write_text("#!/bin/sh\nkill -SEGV $$\n")
    plugin.chmod(0o755)
    assert (await cni.SubprocessExecutor().run(invocation(plugin))).exit_status == -signal.SIGSEGV


async def test_a_kernel_without_pidfds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: int) -> int:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(os, "pidfd_open", refuse)
    plugin = install_steered(tmp_path, "p", stdout="out", exit=3)
    assert await cni.SubprocessExecutor().run(invocation(plugin)) == cni.Completion(3, b"out", b"")
    plugin = install_steered(tmp_path, "p", sleep=60)
    with pytest.raises(cni.PluginTimeout):
        await cni.SubprocessExecutor().run(invocation(plugin, timeout=0.1))


async def test_end_of_a_long_stderr_is_kept(tmp_path: Path) -> None:
    plugin = install_steered(tmp_path, "p", stderr="x" * 500_000 + "the reason")
    answer = await cni.SubprocessExecutor().run(invocation(plugin))
    assert len(answer.stderr) == 32 << 10
    assert answer.stderr.endswith(b"the reason")


async def test_output_up_to_the_bound_is_taken_and_more_is_refused(tmp_path: Path) -> None:
    executor = cni.SubprocessExecutor(stdout_limit=200_000)
    plugin = install_steered(tmp_path, "p", flood=200_000, stdout="")
    assert len((await executor.run(invocation(plugin))).stdout) == 200_000
    plugin = install_steered(tmp_path, "p", flood=200_001, stdout="")
    with pytest.raises(cni.ResultError, match="more than 200000 bytes"):
        await executor.run(invocation(plugin))


async def test_a_flood_is_stopped_when_it_passes_the_bound(tmp_path: Path) -> None:
    plugin = tmp_path / "flood"
    plugin.write_text(f"#!/bin/sh\necho $$ > {tmp_path}/pid\nexec cat /dev/zero\n")
    plugin.chmod(0o755)
    with pytest.raises(cni.ResultError):
        await cni.SubprocessExecutor().run(invocation(plugin))
    assert not runs(int((tmp_path / "pid").read_text()))


@pytest.mark.parametrize("ignore_term", [False, True], ids=["sleeps", "ignores TERM"])
async def test_time_out_kills_the_plugin_and_its_children(tmp_path: Path, ignore_term: bool) -> None:
    plugin = install_steered(
        tmp_path,
        "p",
        stderr="waiting",
        sleep=60,
        background=60,
        ignore_term=ignore_term,
        announce=str(tmp_path / "pid"),
    )
    task = asyncio.create_task(cni.SubprocessExecutor().run(invocation(plugin, timeout=1.0)))
    leader = await announced(tmp_path / "pid")
    children = Path(f"/proc/{leader}/task/{leader}/children").read_text().split()
    assert len(children) == 1
    with pytest.raises(cni.PluginTimeout, match=r"plugin p timed out in ADD after 1\.0 s \(stderr: waiting\)"):
        await task
    assert not runs(leader)
    await ended(int(children[0]))


async def test_cancellation_kills_the_plugin(tmp_path: Path) -> None:
    plugin = install_steered(tmp_path, "p", sleep=60, ignore_term=True, announce=str(tmp_path / "pid"))
    task = asyncio.create_task(cni.SubprocessExecutor().run(invocation(plugin)))
    process = await announced(tmp_path / "pid")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not runs(process)


async def test_a_child_left_in_the_background_does_not_hold_up_the_result(tmp_path: Path) -> None:
    plugin = install_steered(tmp_path, "p", background=4, stdout='{"ips":[]}')
    begin = time.monotonic()
    answer = await cni.SubprocessExecutor().run(invocation(plugin))
    assert answer.stdout == b'{"ips":[]}'
    assert time.monotonic() - begin < 2


async def test_a_file_being_written_is_tried_again_until_it_is_done(tmp_path: Path) -> None:
    plugin = tmp_path / "true"
    plugin.write_bytes(Path("/bin/true").read_bytes())
    plugin.chmod(0o755)
    writer = os.open(plugin, os.O_WRONLY)
    asyncio.get_running_loop().call_later(0.1, os.close, writer)
    answer = await cni.SubprocessExecutor(busy_delay=0.04).run(invocation(plugin))
    assert answer.exit_status == 0


async def test_a_file_that_is_written_for_ever_ends_in_an_error(tmp_path: Path) -> None:
    plugin = tmp_path / "true"
    plugin.write_bytes(Path("/bin/true").read_bytes())
    plugin.chmod(0o755)
    with plugin.open("ab"), pytest.raises(cni.PluginStartError, match="still being written") as caught:
        await cni.SubprocessExecutor(busy_delay=0.01).run(invocation(plugin))
    assert isinstance(caught.value.__cause__, OSError)


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"neither script nor program", id="no program"),
        pytest.param(b"#!/nonexistent/interpreter\n", id="no interpreter"),
    ],
)
async def test_what_cannot_be_executed(tmp_path: Path, content: bytes) -> None:
    plugin = tmp_path / "p"
    plugin.write_bytes(content)
    plugin.chmod(0o755)
    with pytest.raises(cni.PluginStartError, match=str(plugin)):
        await cni.SubprocessExecutor().run(invocation(plugin))


async def test_nothing_stays_open(tmp_path: Path) -> None:
    plugin = install_steered(tmp_path, "p")
    executor = cni.SubprocessExecutor()
    await executor.run(invocation(plugin))
    before = len(descriptors())
    await asyncio.gather(*(executor.run(invocation(plugin)) for _ in range(5)))
    install_steered(tmp_path, "p", sleep=60)
    with pytest.raises(cni.PluginTimeout):
        await executor.run(invocation(plugin, timeout=0.1))
    await asyncio.sleep(0.01)
    assert len(descriptors()) == before


@pytest.mark.parametrize(
    ("config", "shown"),
    [
        pytest.param({"bridge": "cni0", "mtu": 1500, "ipMasq": True}, None, id="settings"),
        pytest.param({"ipam": {"ranges": [[{"subnet": "10.0.0.0/8"}]]}}, None, id="settings within"),
        pytest.param({"password": "x"}, {"password": "…"}, id="a password"),
        pytest.param({"policy": {"k8s_auth_token": "x"}}, {"policy": {"k8s_auth_token": "…"}}, id="a token within"),
        pytest.param({"plugins": [{"API-Key": "x"}]}, {"plugins": [{"API-Key": "…"}]}, id="a key in a list"),
        pytest.param({"Secrets": {"a": ["x"], "b": 1}}, {"Secrets": "…"}, id="all below the name"),
        pytest.param({"pwd": 1234}, {"pwd": "…"}, id="a number"),
        pytest.param({"token": ""}, None, id="an empty one"),
        pytest.param({"url": "https://u:p@host/"}, {"url": "…"}, id="a password in an address"),
        pytest.param({"urls": ["etcd:1", "u:p@etcd"]}, {"urls": ["etcd:1", "…"]}, id="an address in a list"),
        pytest.param({"blob": "e" * 65}, {"blob": "…"}, id="a long value of any name"),
        pytest.param({"sandbox": "/run/netns/" + "e" * 65}, None, id="a network namespace"),
    ],
)
def test_shell_line_has_no_secrets(tmp_path: Path, config: dict[str, object], shown: dict[str, object] | None) -> None:
    line = invocation(tmp_path / "p", config=json.dumps(config).encode()).shell_line()
    assert json.loads(shlex.split(line)[2]) == (config if shown is None else shown)


@pytest.mark.parametrize("config", [b"secret", b'{"a": "secret', b"\xffsecret", b"[" * 100_000 + b"secret"])
def test_shell_line_has_nothing_of_what_is_no_configuration(tmp_path: Path, config: bytes) -> None:
    assert "secret" not in invocation(tmp_path / "p", config=config).shell_line()


def test_shell_line_does_not_print_a_giant(tmp_path: Path) -> None:
    line = invocation(tmp_path / "p", config=b'{"a": [' + b"1, " * 100_000 + b"1]}").shell_line()
    assert len(line) < 1000
    assert "300010 bytes" in line
