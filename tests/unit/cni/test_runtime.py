"""SPEC.md section 3: which plugins run, in which order, with what, and what is left after a failure."""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import json
import logging
import os
import shlex
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import cni
from cni import _files, cache
from tests.unit.cni.fakes import CONTAINER, NETNS, Recorder, failure, install, network, result

ATTACHMENT = cni.Attachment(
    CONTAINER,
    NETNS,
    "eth0",
    (("IgnoreUnknown", "1"), ("K8S_POD_NAME", "web")),
    {"portMappings": [{"hostPort": 8080}], "mac": "aa"},
)
CHAIN = ("bridge", {"type": "portmap", "capabilities": {"portMappings": True}}, "firewall")


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
def runtime(tmp_path: Path, recorder: Recorder) -> cni.Runtime:
    install(tmp_path / "bin", "bridge", "portmap", "firewall")
    return cni.Runtime([tmp_path / "empty", tmp_path / "bin"], tmp_path / "cache", executor=recorder)


def cached(tmp_path: Path) -> list[str]:
    return sorted(path.name for path in (tmp_path / "cache/results").glob("*"))


class TestAdd:
    async def test_runs_forward_and_hands_the_result_on(self, runtime: cni.Runtime, recorder: Recorder) -> None:
        recorder.answers = {
            "bridge ADD": result("10.0.0.1/24"),
            "portmap ADD": result("10.0.0.2/24"),
            "firewall ADD": result("10.0.0.3/24"),
        }
        last = await runtime.add(network(*CHAIN), ATTACHMENT)
        assert recorder.calls == ["bridge ADD", "portmap ADD", "firewall ADD"]
        assert [config.get("prevResult") for config in recorder.configs] == [
            None,
            result("10.0.0.1/24"),
            result("10.0.0.2/24"),
        ]
        assert str(last.ips[0].address) == "10.0.0.3/24"

    async def test_environment_is_that_of_the_specification(
        self, runtime: cni.Runtime, recorder: Recorder, tmp_path: Path
    ) -> None:
        await runtime.add(network("bridge"), ATTACHMENT)
        [invocation] = recorder.invocations
        assert invocation.environment == {
            "CNI_COMMAND": "ADD",
            "CNI_CONTAINERID": CONTAINER,
            "CNI_NETNS": NETNS,
            "CNI_IFNAME": "eth0",
            "CNI_ARGS": "IgnoreUnknown=1;K8S_POD_NAME=web",
            "CNI_PATH": f"{tmp_path}/empty:{tmp_path}/bin",
        }
        assert invocation.plugin == tmp_path / "bin/bridge"

    async def test_capability_arguments_go_to_who_declares_them(self, runtime: cni.Runtime, recorder: Recorder) -> None:
        await runtime.add(network(*CHAIN), ATTACHMENT)
        assert [config.get("runtimeConfig") for config in recorder.configs] == [
            None,
            {"portMappings": [{"hostPort": 8080}]},
            None,
        ]

    async def test_prev_result_is_of_the_networks_version(self, runtime: cni.Runtime, recorder: Recorder) -> None:
        recorder.answers = {"bridge ADD": {"cniVersion": "0.2.0", "ip4": {"ip": "10.0.0.2/24"}}}
        await runtime.add(network("bridge", "portmap", version="0.4.0"), ATTACHMENT)
        assert recorder.configs[1]["prevResult"] == {
            "cniVersion": "0.4.0",
            "ips": [{"version": "4", "address": "10.0.0.2/24"}],
        }

    async def test_last_result_is_cached(self, runtime: cni.Runtime, recorder: Recorder) -> None:
        recorder.answers = {"firewall ADD": result("10.0.0.9/24")}
        net = network(*CHAIN)
        last = await runtime.add(net, ATTACHMENT)
        assert runtime.cached_attachments(CONTAINER) == [cni.CachedAttachment(net, ATTACHMENT, last)]

    @pytest.mark.parametrize(
        ("answer", "error"),
        [
            pytest.param(failure(11, "try again"), cni.PluginError, id="the plugin says no"),
            pytest.param(b"garbage", cni.ResultError, id="the plugin prints garbage"),
            pytest.param(b"", cni.ResultError, id="the plugin prints nothing"),
            pytest.param(cni.PluginTimeout("late"), cni.PluginTimeout, id="the plugin hangs"),
            pytest.param(cni.PluginStartError("broken"), cni.PluginStartError, id="the plugin cannot start"),
        ],
    )
    async def test_first_failure_ends_it_and_what_the_plugins_before_said_is_kept_for_the_undo(
        self, runtime: cni.Runtime, recorder: Recorder, tmp_path: Path, answer: Any, error: type[cni.CNIError]
    ) -> None:
        recorder.answers = {"bridge ADD": result("10.0.0.9/24"), "portmap ADD": answer}
        with pytest.raises(error):
            await runtime.add(network(*CHAIN), ATTACHMENT)
        assert recorder.calls == ["bridge ADD", "portmap ADD"]
        [kept] = runtime.cached_attachments(CONTAINER)
        assert not kept.finished
        recorder.invocations.clear()
        await runtime.delete(kept.network, kept.attachment)
        assert [config["prevResult"] for config in recorder.configs] == [result("10.0.0.9/24")] * 3
        assert cached(tmp_path) == []

    async def test_failure_of_the_first_plugin_leaves_nothing_in_the_cache(
        self, runtime: cni.Runtime, recorder: Recorder, tmp_path: Path
    ) -> None:
        recorder.answers = {"bridge ADD": failure(11, "try again")}
        with pytest.raises(cni.PluginError):
            await runtime.add(network(*CHAIN), ATTACHMENT)
        assert cached(tmp_path) == []

    async def test_plugin_that_is_not_installed(self, runtime: cni.Runtime, tmp_path: Path) -> None:
        (tmp_path / "bin/portmap").unlink()
        with pytest.raises(cni.PluginNotFound, match=r"plugin portmap not found in .*/empty:.*/bin"):
            await runtime.add(network(*CHAIN), ATTACHMENT)

    async def test_plugin_that_cannot_be_executed(self, runtime: cni.Runtime, tmp_path: Path) -> None:
        (tmp_path / "bin/portmap").chmod(0o644)
        with pytest.raises(cni.PluginNotFound, match=r"plugin portmap: /\S+/bin/portmap is not executable"):
            await runtime.add(network(*CHAIN), ATTACHMENT)

    @pytest.mark.parametrize("netns", [None, ""])
    async def test_needs_a_namespace(self, runtime: cni.Runtime, recorder: Recorder, netns: str | None) -> None:
        with pytest.raises(cni.AttachmentError, match="no network namespace"):
            await runtime.add(network("bridge"), cni.Attachment(CONTAINER, netns))
        assert recorder.calls == []

    async def test_full_disk_is_told(self, runtime: cni.Runtime, tmp_path: Path) -> None:
        (tmp_path / "cache").write_text("no folder")
        with pytest.raises(cni.CacheError, match="cannot write"):
            await runtime.add(network("bridge"), ATTACHMENT)


class TestDelete:
    async def test_runs_backward_with_the_cached_result_and_forgets_it(
        self, runtime: cni.Runtime, recorder: Recorder, tmp_path: Path
    ) -> None:
        recorder.answers = {"firewall ADD": result("10.0.0.9/24")}
        await runtime.add(network(*CHAIN), ATTACHMENT)
        recorder.invocations.clear()
        await runtime.delete(network(*CHAIN), ATTACHMENT)
        assert recorder.calls == ["firewall DEL", "portmap DEL", "bridge DEL"]
        assert [config["prevResult"] for config in recorder.configs] == [result("10.0.0.9/24")] * 3
        assert recorder.configs[1]["runtimeConfig"] == {"portMappings": [{"hostPort": 8080}]}
        assert cached(tmp_path) == []

    @pytest.mark.parametrize("version", ["0.1.0", "0.2.0", "0.3.0", "0.3.1"])
    async def test_no_prev_result_before_0_4_0(self, runtime: cni.Runtime, recorder: Recorder, version: str) -> None:
        net = network("bridge", version=version)
        await runtime.add(net, ATTACHMENT)
        await runtime.delete(net, ATTACHMENT)
        assert "prevResult" not in recorder.configs[1]

    @pytest.mark.parametrize("netns", [None, ""])
    async def test_works_without_a_namespace(self, runtime: cni.Runtime, recorder: Recorder, netns: str | None) -> None:
        await runtime.delete(network("bridge"), cni.Attachment(CONTAINER, netns))
        assert recorder.invocations[0].environment["CNI_NETNS"] == ""

    async def test_what_was_never_added_or_is_deleted_twice(self, runtime: cni.Runtime, recorder: Recorder) -> None:
        await runtime.delete(network("bridge"), ATTACHMENT)
        await runtime.delete(network("bridge"), ATTACHMENT)
        assert recorder.calls == ["bridge DEL"] * 2
        assert "prevResult" not in recorder.configs[0]

    async def test_damaged_cache_is_no_obstacle(
        self, runtime: cni.Runtime, recorder: Recorder, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        await runtime.add(network("bridge"), ATTACHMENT)
        (tmp_path / "cache/results" / cached(tmp_path)[0]).write_text("{")
        await runtime.delete(network("bridge"), ATTACHMENT)
        assert "prevResult" not in recorder.configs[1]
        assert "without the cached result" in caplog.text
        assert cached(tmp_path) == []

    async def test_every_plugin_is_tried_all_failures_told_and_the_entry_kept(
        self, runtime: cni.Runtime, recorder: Recorder, tmp_path: Path
    ) -> None:
        await runtime.add(network(*CHAIN), ATTACHMENT)
        recorder.answers = {"firewall DEL": failure(999, "iptables"), "bridge DEL": cni.PluginTimeout("late")}
        (tmp_path / "bin/portmap").unlink()
        with pytest.raises(cni.OperationFailed) as caught:
            await runtime.delete(network(*CHAIN), ATTACHMENT)
        assert [type(one) for one in caught.value.failures] == [cni.PluginError, cni.PluginNotFound, cni.PluginTimeout]
        for part in ("iptables", "plugin portmap not found", "late", CONTAINER):
            assert part in str(caught.value)
        [entry] = runtime.cached_attachments()
        assert (entry.attachment.container_id, entry.finished) == (CONTAINER, False)

    async def test_a_full_disk_is_no_obstacle(
        self, runtime: cni.Runtime, recorder: Recorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await runtime.add(network("bridge"), ATTACHMENT)

        def no_room(*_: object, **__: object) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(_files, "replace", no_room)
        await runtime.delete(network("bridge"), ATTACHMENT)
        assert "prevResult" in recorder.configs[1]
        assert cached(tmp_path) == []

    async def test_unknown_container_means_nothing_to_clean_up(
        self, runtime: cni.Runtime, recorder: Recorder, tmp_path: Path
    ) -> None:
        await runtime.add(network("bridge"), ATTACHMENT)
        recorder.answers = {"bridge DEL": failure(cni.ErrorCode.UNKNOWN_CONTAINER, "who?")}
        await runtime.delete(network("bridge"), ATTACHMENT)
        assert cached(tmp_path) == []

    async def test_a_plugin_that_hangs_leaves_time_for_the_others(
        self, runtime: cni.Runtime, recorder: Recorder
    ) -> None:
        await runtime.delete(network(*CHAIN), ATTACHMENT)
        shares = [invocation.timeout for invocation in recorder.invocations]
        assert shares == pytest.approx([220 / 3, 220 / 2, 220], rel=0.01)

    async def test_needs_no_configuration_but_the_cached_one(
        self, runtime: cni.Runtime, recorder: Recorder, tmp_path: Path
    ) -> None:
        await runtime.add(network(*CHAIN), ATTACHMENT)
        recorder.invocations.clear()
        later = cni.Runtime([tmp_path / "bin"], tmp_path / "cache", executor=recorder)
        [one] = later.cached_attachments(CONTAINER)
        await later.delete(one.network, one.attachment)
        assert recorder.calls == ["firewall DEL", "portmap DEL", "bridge DEL"]
        assert recorder.invocations[0].environment["CNI_ARGS"] == "IgnoreUnknown=1;K8S_POD_NAME=web"


class TestStatus:
    async def test_asks_every_plugin(self, runtime: cni.Runtime, recorder: Recorder) -> None:
        await runtime.status(network(*CHAIN, version="1.1.0"))
        assert recorder.calls == ["bridge STATUS", "portmap STATUS", "firewall STATUS"]
        assert recorder.configs[0] == {"type": "bridge", "name": "podnet", "cniVersion": "1.1.0"}
        assert recorder.invocations[0].environment["CNI_CONTAINERID"] == ""

    async def test_first_failure_keeps_its_code(self, runtime: cni.Runtime, recorder: Recorder) -> None:
        recorder.answers = {"portmap STATUS": failure(50, "no addresses left")}
        with pytest.raises(cni.PluginError, match="no addresses left") as caught:
            await runtime.status(network(*CHAIN, version="1.1.0"))
        assert caught.value.code == 50
        assert recorder.calls == ["bridge STATUS", "portmap STATUS"]

    async def test_older_networks_have_none(self, runtime: cni.Runtime, recorder: Recorder) -> None:
        await runtime.status(network("bridge"))
        assert recorder.calls == []


class TestGC:
    @pytest.fixture(autouse=True)
    async def attached(self, runtime: cni.Runtime, recorder: Recorder) -> None:
        for container in ("stale", "valid"):
            await runtime.add(
                network("bridge", version="1.1.0"), dataclasses.replace(ATTACHMENT, container_id=container)
            )
        other = cni.NetworkList.parse({"name": "other", "cniVersion": "1.1.0", "plugins": [{"type": "bridge"}]})
        await runtime.add(other, dataclasses.replace(ATTACHMENT, container_id="of-other"))
        recorder.invocations.clear()

    @pytest.mark.parametrize(
        ("version", "commands"),
        [
            pytest.param("1.0.0", ["bridge DEL"], id="before 1.1.0 by the cache alone"),
            pytest.param("1.1.0", ["bridge DEL", "bridge GC", "portmap GC"], id="from 1.1.0 the plugins too"),
        ],
    )
    async def test_stale_attachments_of_the_network_go(
        self, runtime: cni.Runtime, recorder: Recorder, tmp_path: Path, version: str, commands: list[str]
    ) -> None:
        await runtime.gc(network("bridge", "portmap", version=version), lambda _: [("valid", "eth0")])
        assert recorder.calls == commands
        assert all(len(one.pass_fds) == 1 for one in recorder.invocations), "each holds the lock"
        assert recorder.invocations[0].environment["CNI_CONTAINERID"] == "stale"
        assert recorder.invocations[0].environment["CNI_NETNS"] == NETNS
        assert cached(tmp_path) == ["other-of-other-eth0", "podnet-valid-eth0"]
        if version == "1.1.0":
            assert recorder.configs[1]["cni.dev/valid-attachments"] == [{"containerID": "valid", "ifname": "eth0"}]

    async def test_another_interface_of_a_valid_container_is_stale(
        self, runtime: cni.Runtime, recorder: Recorder
    ) -> None:
        await runtime.gc(network("bridge", version="1.0.0"), lambda _: [("valid", "eth1"), ("stale", "eth0")])
        assert [invocation.environment["CNI_CONTAINERID"] for invocation in recorder.invocations] == ["valid"]

    async def test_a_process_of_the_past_is_no_namespace(self, runtime: cni.Runtime, recorder: Recorder) -> None:
        adopted = cni.Attachment("adopted", "/proc/4711/ns/net")
        await runtime.add(network("bridge"), adopted)
        recorder.invocations.clear()
        await runtime.gc(network("bridge"), lambda _: [("valid", "eth0"), ("stale", "eth0")])
        assert recorder.invocations[0].environment["CNI_NETNS"] == ""

    async def test_everything_is_tried_and_all_failures_told(self, runtime: cni.Runtime, recorder: Recorder) -> None:
        recorder.answers = {"bridge DEL": failure(1, "first"), "bridge GC": failure(2, "second")}
        with pytest.raises(cni.OperationFailed) as caught:
            await runtime.gc(network("bridge", "portmap", version="1.1.0"), lambda _: [("valid", "eth0")])
        assert len(caught.value.failures) == 2
        assert recorder.calls == ["bridge DEL", "bridge GC", "portmap GC"]

    async def test_what_is_valid_is_asked_when_nothing_else_runs(
        self, runtime: cni.Runtime, recorder: Recorder
    ) -> None:
        recorder.delay = lambda invocation: 0.05
        adding = asyncio.create_task(runtime.add(network("bridge"), cni.Attachment("late", NETNS)))
        await asyncio.sleep(0.01)
        asked: list[str] = []

        def valid(cached: Sequence[cni.CachedAttachment]) -> list[tuple[str, str]]:
            asked.extend(one.attachment.container_id for one in cached)
            return [(one.attachment.container_id, one.attachment.ifname) for one in cached]

        await runtime.gc(network("bridge"), valid)
        await adding
        assert "late" in asked
        assert "bridge DEL" not in recorder.calls

    async def test_can_be_disabled(self, runtime: cni.Runtime, recorder: Recorder) -> None:
        await runtime.gc(network("bridge", version="1.1.0", disableGC=True), lambda _: [])
        assert recorder.calls == []


class TestVersion:
    @pytest.mark.parametrize(
        ("answer", "supported"),
        [
            pytest.param(
                {"cniVersion": "1.0.0", "supportedVersions": ["0.4.0", "1.0.0"]}, ("0.4.0", "1.0.0"), id="list"
            ),
            pytest.param({"cniVersion": "0.2.0"}, ("0.1.0", "0.2.0"), id="0.2.0 had no list yet"),
            pytest.param(failure(100, "unknown CNI_COMMAND: VERSION"), ("0.1.0",), id="0.1.0 had no such command"),
        ],
    )
    async def test_answers(
        self, runtime: cni.Runtime, recorder: Recorder, answer: Any, supported: tuple[str, ...]
    ) -> None:
        recorder.answers = {"bridge VERSION": answer}
        assert await runtime.version("bridge") == supported
        assert recorder.configs == [{"cniVersion": "1.1.0"}]

    @pytest.mark.parametrize(
        ("answer", "error"),
        [
            pytest.param(failure(999, "boom"), cni.PluginError, id="failure"),
            pytest.param(b"1.0.0", cni.ResultError, id="no JSON object"),
            pytest.param({"cniVersion": "1.0.0"}, cni.ResultError, id="no list"),
            pytest.param({"supportedVersions": [1]}, cni.ResultError, id="a list of numbers"),
        ],
    )
    async def test_failures(
        self, runtime: cni.Runtime, recorder: Recorder, answer: Any, error: type[cni.CNIError]
    ) -> None:
        recorder.answers = {"bridge VERSION": answer}
        with pytest.raises(error):
            await runtime.version("bridge")

    @pytest.mark.parametrize("plugin", ["", "../bridge", "missing"])
    async def test_not_found(self, runtime: cni.Runtime, plugin: str) -> None:
        with pytest.raises(cni.PluginNotFound):
            await runtime.version(plugin)

    async def test_plugins_are_found_without_being_executed(
        self, runtime: cni.Runtime, recorder: Recorder, tmp_path: Path
    ) -> None:
        runtime.find_plugins(network(*CHAIN))
        (tmp_path / "bin/portmap").unlink()
        with pytest.raises(cni.PluginNotFound, match="plugin portmap not found"):
            runtime.find_plugins(network(*CHAIN))
        assert recorder.calls == []

    async def test_validate_asks_each_plugin_once_and_lists_what_is_wrong(
        self, runtime: cni.Runtime, recorder: Recorder
    ) -> None:
        recorder.answers = {
            "bridge VERSION": {"cniVersion": "1.0.0", "supportedVersions": ["1.0.0"]},
            "portmap VERSION": {"cniVersion": "0.4.0", "supportedVersions": ["0.4.0"]},
        }
        await runtime.validate(network("bridge", "bridge"))
        assert recorder.calls == ["bridge VERSION"]
        with pytest.raises(cni.OperationFailed) as caught:
            await runtime.validate(network("bridge", "portmap", "missing"))
        assert [type(one) for one in caught.value.failures] == [cni.NotSupported, cni.PluginNotFound]


class TestOrder:
    """SPEC.md section 3, "Lifecycle & Ordering"."""

    async def test_one_container_takes_turns_and_others_do_not_wait(
        self, runtime: cni.Runtime, recorder: Recorder
    ) -> None:
        recorder.delay = lambda invocation: 0.5 if invocation.command == "ADD" else 0
        net = network("bridge")
        slow = asyncio.create_task(runtime.add(net, ATTACHMENT))
        await asyncio.sleep(0.01)
        second = asyncio.create_task(runtime.delete(net, ATTACHMENT))
        await runtime.delete(net, cni.Attachment("other"))
        await asyncio.gather(slow, second)
        assert recorder.calls == ["bridge ADD", "bridge DEL", "bridge DEL"]
        assert recorder.invocations[1].environment["CNI_CONTAINERID"] == "other"

    async def test_garbage_collection_runs_alone(self, runtime: cni.Runtime, recorder: Recorder) -> None:
        recorder.delay = lambda invocation: 0.02
        net = network("bridge", version="1.1.0")
        first = asyncio.create_task(runtime.add(net, ATTACHMENT))
        await asyncio.sleep(0)
        collection = asyncio.create_task(runtime.gc(net, lambda _: [(CONTAINER, "eth0")]))
        await asyncio.sleep(0)
        late = asyncio.create_task(runtime.add(net, cni.Attachment("late", NETNS)))
        await asyncio.gather(first, collection, late)
        assert recorder.calls == ["bridge ADD", "bridge GC", "bridge ADD"]

    async def test_cancelling_a_collection_that_waits_lets_the_others_go_on(
        self, runtime: cni.Runtime, recorder: Recorder
    ) -> None:
        recorder.delay = lambda invocation: 0.3 if invocation.environment["CNI_CONTAINERID"] == CONTAINER else 0.0
        net = network("bridge")
        slow = asyncio.create_task(runtime.add(net, ATTACHMENT))
        await asyncio.sleep(0.01)
        collection = asyncio.create_task(runtime.gc(net, lambda _: []))
        await asyncio.sleep(0)
        late = asyncio.create_task(runtime.add(net, cni.Attachment("late", NETNS)))
        await asyncio.sleep(0)
        collection.cancel()
        await late
        assert not slow.done()
        await asyncio.gather(slow, collection, return_exceptions=True)

    async def test_waiting_for_a_turn_is_bounded(self, tmp_path: Path, recorder: Recorder) -> None:
        install(tmp_path / "bin", "bridge")
        runtime = cni.Runtime([tmp_path / "bin"], tmp_path, timeout=0.05, executor=recorder)
        recorder.delay = lambda invocation: 0.2
        first = asyncio.create_task(runtime.add(network("bridge"), ATTACHMENT))
        await asyncio.sleep(0.01)
        with pytest.raises(cni.OperationTimeout):
            await runtime.delete(network("bridge"), ATTACHMENT)
        await first

    async def test_cancelling_one_that_waits_leaves_the_turn_to_the_next(
        self, runtime: cni.Runtime, recorder: Recorder
    ) -> None:
        recorder.delay = lambda invocation: 0.02
        tasks = [asyncio.create_task(runtime.delete(network("bridge"), ATTACHMENT)) for _ in range(3)]
        await asyncio.sleep(0.01)
        tasks[1].cancel()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [type(None), asyncio.CancelledError, type(None)]
        assert recorder.calls == ["bridge DEL"] * 2


async def test_cancelled_add_writes_nothing_behind_the_callers_back(
    runtime: cni.Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writing = threading.Event()
    write = cache.ResultCache.write

    def slow(*args: Any, **kwargs: Any) -> None:
        writing.set()
        time.sleep(0.1)
        write(*args, **kwargs)

    monkeypatch.setattr(cache.ResultCache, "write", slow)
    add = asyncio.create_task(runtime.add(network("bridge"), ATTACHMENT))
    assert await asyncio.to_thread(writing.wait, 5)
    add.cancel()
    with pytest.raises(asyncio.CancelledError):
        await add
    before = cached(tmp_path)
    await asyncio.sleep(0.15)
    assert cached(tmp_path) == before


async def test_no_time_left_starts_no_plugin(tmp_path: Path, recorder: Recorder) -> None:
    install(tmp_path / "bin", "bridge", "portmap")
    runtime = cni.Runtime([tmp_path / "bin"], tmp_path, timeout=0.5, executor=recorder)
    recorder.delay = lambda invocation: 0.6
    with pytest.raises(cni.OperationTimeout, match="deadline exceeded before ADD of plugin portmap"):
        await runtime.add(network("bridge", "portmap"), ATTACHMENT)


async def test_a_delete_that_may_fail_tells_nobody(
    runtime: cni.Runtime, recorder: Recorder, caplog: pytest.LogCaptureFixture
) -> None:
    recorder.answers = {"bridge DEL": failure(999, "no rules")}
    for level, told in ((logging.DEBUG, 0), (logging.WARNING, 1)):
        with caplog.at_level(logging.INFO), pytest.raises(cni.OperationFailed, match="no rules"):
            await runtime.delete(network("bridge"), ATTACHMENT, level)
        assert len(caplog.messages) == told


async def test_failure_is_logged_as_a_line_for_a_shell(
    runtime: cni.Runtime, recorder: Recorder, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    seen = tmp_path / "seen"
    (tmp_path / "bin/bridge").write_text(f"#!/bin/sh\ncat /dev/stdin > {seen}; env | grep ^CNI_ | sort >> {seen}\n")
    recorder.answers = {"bridge ADD": failure(999, "it's broken")}
    with pytest.raises(cni.PluginError):
        await runtime.add(network({"type": "bridge", "quote": "it's $HOME"}), ATTACHMENT)
    [message] = caplog.messages
    line = message.partition("to repeat it: ")[2]
    assert shlex.split(line)[0] == "printf"
    await asyncio.to_thread(subprocess.run, line, shell=True, check=True)
    config, _, environment = seen.read_text().partition("}CNI_")
    assert json.loads(config + "}") == recorder.configs[0]
    assert dict(pair.split("=", 1) for pair in f"CNI_{environment}".splitlines()) == recorder.invocations[0].environment


@pytest.mark.parametrize(
    ("make", "said"),
    [
        pytest.param(lambda: cni.PluginError.parse("p", "ADD", 1, b'{"code":7,"msg":"m","details":"d"}', b"noise"),
                     (7, "m", "d", "noise"), id="the specification's form"),
        pytest.param(lambda: cni.PluginError.parse("p", "ADD", 1, b'{"code":150,"msg":"m"}', b""),
                     (150, "m", "", ""), id="a code of the plugin's own"),
        pytest.param(lambda: cni.PluginError.parse("p", "ADD", 1, b'{"code":"x"}', b""),
                     (0, "exit status 1", "", ""), id="neither code nor message"),
        pytest.param(lambda: cni.PluginError.parse("p", "ADD", 2, b"", b"usage: p\n"),
                     (0, "exit status 2: usage: p", "", "usage: p"), id="only stderr"),
        pytest.param(lambda: cni.PluginError.parse("p", "ADD", -9, b"", b""),
                     (0, "killed by signal 9: it printed no error", "", ""), id="a signal"),
        pytest.param(lambda: cni.PluginError.parse("p", "ADD", 1, b"[" * 100_000, b""),
                     (0, "exit status 1: " + "[" * 4096, "", ""), id="garbage, cut"),
    ],
)  # fmt: skip
def test_error_of_a_plugin(make: Callable[[], cni.PluginError], said: tuple[int, str, str, str]) -> None:
    error = make()
    assert (error.code, error.msg, error.details, error.stderr) == said


async def test_stderr_is_told_with_a_result_that_is_none(runtime: cni.Runtime, recorder: Recorder) -> None:
    recorder.answers = {"bridge ADD": cni.Completion(0, b"", b"warning: no address pool\n")}
    with pytest.raises(cni.ResultError, match=r"\(stderr: warning: no address pool\)"):
        await runtime.add(network("bridge"), ATTACHMENT)


async def test_stderr_of_success_is_kept_in_the_log(
    runtime: cni.Runtime, recorder: Recorder, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    recorder.answers = {"bridge ADD": cni.Completion(0, b"{}", b"a warning\n")}
    await runtime.add(network("bridge"), ATTACHMENT)
    assert "plugin bridge said during ADD: a warning" in caplog.messages
