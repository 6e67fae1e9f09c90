"""Counts and times the calls at the server's borders: see ``dockershim.common.measure``."""

from __future__ import annotations

from collections.abc import Container
from typing import Final, TypeVar

import grpc
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
)
from prometheus_client.metrics import MetricWrapperBase

import cni
from dockershim.common.measure import measured
from dockershim.cri.calls import OPEN_ENDED, code_of
from dockershim.metrics.families import FAMILIES

M = TypeVar("M", bound=MetricWrapperBase)

#: Buckets from reads that memory answers up to the start of a pod with a slow network.
_SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 120)
_PULL_SECONDS: Final = (0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800)


class CountedCalls:
    """The calls at one border: how many have ended with which code, how long they took, how many are in flight.

    ``thing`` is part of the names of the metrics. A call whose first label is in ``untimed`` has no duration.
    """

    def __init__(
        self,
        thing: str,
        registry: CollectorRegistry,
        *,
        buckets: tuple[float, ...] = _SECONDS,
        untimed: Container[str] = (),
    ) -> None:
        self._total = Counter(*_described(f"dockershim_{thing}s_total"), registry=registry)
        self._duration = Histogram(
            *_described(f"dockershim_{thing}_duration_seconds"), registry=registry, buckets=buckets
        )
        self._in_flight = Gauge(*_described(f"dockershim_{thing}s_in_flight"), registry=registry)
        self._untimed = untimed

    def code_of(self, error: BaseException) -> str:
        return code_of(error)

    def begun(self, *labels: str) -> None:
        _of(self._in_flight, labels).inc()

    def ended(self, code: str, seconds: float, *labels: str) -> None:
        _of(self._in_flight, labels).dec()
        self._total.labels(*labels, code).inc()
        if not labels or labels[0] not in self._untimed:
            _of(self._duration, labels).observe(seconds)


class CountedPulls(CountedCalls):
    """Pulls of images, with the number of bytes that they download."""

    def __init__(self, registry: CollectorRegistry) -> None:
        super().__init__("image_pull", registry, buckets=_PULL_SECONDS)
        self._bytes = Counter(*_described("dockershim_image_pull_bytes_total"), registry=registry)

    def received(self, count: int) -> None:
        self._bytes.inc(count)


class CountedPlugins:
    """Runs CNI plugins with another executor, and counts them."""

    def __init__(self, executor: cni.Executor, registry: CollectorRegistry) -> None:
        self._executor = executor
        self._calls = CountedCalls("cni_call", registry)

    async def run(self, invocation: cni.Invocation) -> cni.Completion:
        """See ``cni.Executor``. A plugin that reports a failure raises nothing here, but counts as failed."""
        with measured(self._calls, invocation.command, invocation.plugin.name) as call:
            completion = await self._executor.run(invocation)
            if completion.exit_status:
                call.code = grpc.StatusCode.INTERNAL.name
        return completion


class Instruments:
    """All instruments, with a registry of their own."""

    def __init__(self) -> None:
        # Else each series gets a second one with its creation time, which nobody needs.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self.rpcs = CountedCalls("rpc", self.registry, untimed=(OPEN_ENDED,))
        self.engine = CountedCalls("engine_call", self.registry)
        self.plugins = CountedPlugins(cni.SubprocessExecutor(), self.registry)
        self.pulls = CountedPulls(self.registry)
        self._steps = Histogram(
            *_described("dockershim_phase_duration_seconds"), registry=self.registry, buckets=_SECONDS
        )

    def step_passed(self, name: str, seconds: float) -> None:
        """The listener for ``steps.listening``."""
        self._steps.labels(name).observe(seconds)


def _described(name: str) -> tuple[str, str, tuple[str, ...]]:
    family = FAMILIES[name]
    return family.name, family.help, family.labels


def _of(metric: M, labels: tuple[str, ...]) -> M:
    return metric.labels(*labels) if labels else metric
