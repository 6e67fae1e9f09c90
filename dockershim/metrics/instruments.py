"""Counts and times the calls at the server's borders, and steps: see ``dockershim.common.timed``."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Container, Iterator
from typing import Final, TypeVar

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
)
from prometheus_client.metrics import MetricWrapperBase

from dockershim.common.timed import Kind, Timed, subscribed
from dockershim.cri.calls import OPEN_ENDED, code_of_block
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

    def begin(self, call: Timed) -> Callable[[], None]:
        """Subscribes to the calls."""
        labels, in_flight = call.labels, _of(self._in_flight, call.labels)
        in_flight.inc()

        def end() -> None:
            in_flight.dec()
            self._total.labels(*labels, code_of_block(call)).inc()
            if not labels or labels[0] not in self._untimed:
                _of(self._duration, labels).observe(call.seconds)

        return end


class Instruments:
    """All instruments, with a registry of their own."""

    def __init__(self) -> None:
        # Without this, each series has a second one with its creation time, which is not used.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self._calls = {
            Kind.RPC: CountedCalls("rpc", self.registry, untimed=(OPEN_ENDED,)),
            Kind.ENGINE: CountedCalls("engine_call", self.registry),
            Kind.PLUGIN: CountedCalls("cni_call", self.registry),
            Kind.PULL: CountedCalls("image_pull", self.registry, buckets=_PULL_SECONDS),
        }
        self._pull_bytes = Counter(*_described("dockershim_image_pull_bytes_total"), registry=self.registry)
        self._steps = Histogram(
            *_described("dockershim_step_duration_seconds"), registry=self.registry, buckets=_SECONDS
        )

    @contextlib.contextmanager
    def subscribed(self) -> Iterator[None]:
        """For the length of a block, count and time all that this process does."""
        with contextlib.ExitStack() as stack:
            for kind, calls in self._calls.items():
                stack.enter_context(subscribed(calls.begin, kind))
            stack.enter_context(subscribed(self._begin_step, Kind.STEP))
            yield

    def received(self, count: int) -> None:
        """So many more bytes of layers came from registries."""
        self._pull_bytes.inc(count)

    def _begin_step(self, step: Timed) -> Callable[[], None]:
        def end() -> None:
            if step.error is None:
                self._steps.labels(*step.labels).observe(step.seconds)

        return end


def _described(name: str) -> tuple[str, str, tuple[str, ...]]:
    family = FAMILIES[name]
    return family.name, family.help, family.labels


def _of(metric: M, labels: tuple[str, ...]) -> M:
    return metric.labels(*labels) if labels else metric
