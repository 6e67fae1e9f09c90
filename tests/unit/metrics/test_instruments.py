"""What is counted of calls."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

import cni
from dockershim import errors
from dockershim.common.steps import step
from dockershim.common.timed import Kind, timed
from dockershim.cri.calls import code_of
from dockershim.metrics.instruments import Instruments
from dockershim.network.plugins import TimedPlugins


@pytest.fixture
def instruments() -> Iterator[Instruments]:
    instruments = Instruments()
    with instruments.subscribed():
        yield instruments


@pytest.fixture
def registry(instruments: Instruments) -> CollectorRegistry:
    return instruments.registry


@pytest.mark.parametrize(
    ("error", "code"),
    [
        pytest.param(errors.NotFound(), "NOT_FOUND", id="of ours"),
        pytest.param(errors.Unsupported(), "INVALID_ARGUMENT", id="by its base"),
        pytest.param(errors.Unavailable(), "UNAVAILABLE", id="no engine"),
        pytest.param(asyncio.CancelledError(), "CANCELLED", id="nobody waits any more"),
        pytest.param(GeneratorExit(), "CANCELLED", id="nobody reads any more"),
        pytest.param(cni.PluginTimeout(), "DEADLINE_EXCEEDED", id="a plugin that hangs"),
        pytest.param(cni.PluginStartError(), "INTERNAL", id="a plugin that cannot run"),
        pytest.param(KeyError("secret"), "INTERNAL", id="unforeseen"),
    ],
)
def test_code(error: BaseException, code: str) -> None:
    assert code_of(error) == code


def test_a_call_is_counted_with_its_end(registry: CollectorRegistry) -> None:
    with timed(Kind.ENGINE, "GET /info"):
        assert registry.get_sample_value("dockershim_engine_calls_in_flight", {"call": "GET /info"}) == 1
    with pytest.raises(errors.NotFound), timed(Kind.ENGINE, "GET /info"):
        raise errors.NotFound
    counted = [
        registry.get_sample_value("dockershim_engine_calls_total", {"call": "GET /info", "code": code})
        for code in ("OK", "NOT_FOUND", "INTERNAL")
    ]
    assert counted == [1, 1, None]
    assert registry.get_sample_value("dockershim_engine_calls_in_flight", {"call": "GET /info"}) == 0
    assert registry.get_sample_value("dockershim_engine_call_duration_seconds_count", {"call": "GET /info"}) == 2


def test_a_call_that_ends_with_its_client_has_no_duration(registry: CollectorRegistry) -> None:
    with pytest.raises(GeneratorExit), timed(Kind.RPC, "GetContainerEvents"):
        raise GeneratorExit
    labels = {"method": "GetContainerEvents"}
    assert registry.get_sample_value("dockershim_rpcs_total", labels | {"code": "CANCELLED"}) == 1
    assert registry.get_sample_value("dockershim_rpc_duration_seconds_count", labels) is None


def test_pulls_have_no_labels_but_their_code(instruments: Instruments, registry: CollectorRegistry) -> None:
    with timed(Kind.PULL):
        instruments.received(1000)
    assert registry.get_sample_value("dockershim_image_pulls_total", {"code": "OK"}) == 1
    assert registry.get_sample_value("dockershim_image_pull_duration_seconds_count") == 1
    assert registry.get_sample_value("dockershim_image_pull_bytes_total") == 1000


class Plugins:
    """An executor with its answers."""

    def __init__(self, *answers: int | BaseException) -> None:
        self._answers: Iterator[int | BaseException] = iter(answers)

    async def run(self, invocation: cni.Invocation) -> cni.Completion:
        answer = next(self._answers)
        if isinstance(answer, BaseException):
            raise answer
        return cni.Completion(answer, b"{}", b"")


async def test_plugins_are_counted_by_how_they_ended(registry: CollectorRegistry) -> None:
    executor = TimedPlugins(Plugins(0, 1, cni.PluginTimeout("too long")))
    add = cni.Invocation(Path("/opt/cni/bin/bridge"), {"CNI_COMMAND": "ADD"}, b"{}", 1.0)
    assert (await executor.run(add)).exit_status == 0
    assert (await executor.run(add)).exit_status == 1
    with pytest.raises(cni.PluginTimeout):
        await executor.run(add)
    labels = {"command": "ADD", "plugin": "bridge"}
    counted = {
        code: registry.get_sample_value("dockershim_cni_calls_total", labels | {"code": code})
        for code in ("OK", "INTERNAL", "DEADLINE_EXCEEDED")
    }
    assert counted == {"OK": 1, "INTERNAL": 1, "DEADLINE_EXCEEDED": 1}
    assert registry.get_sample_value("dockershim_cni_calls_in_flight", labels) == 0


def test_steps_that_succeed_are_timed() -> None:
    instruments = Instruments()
    with instruments.subscribed():
        with step("pin the network namespace"):
            pass
        with pytest.raises(OSError, match="full"), step("write the checkpoint"):
            raise OSError("full")
    with step("pin the network namespace"):
        pass
    counted = [
        instruments.registry.get_sample_value("dockershim_step_duration_seconds_count", {"step": name})
        for name in ("pin the network namespace", "write the checkpoint")
    ]
    assert counted == [1, None]
