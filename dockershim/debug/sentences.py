"""Sentences that the terminal and the page share. Pure; foreign text is not changed."""

from __future__ import annotations

from collections.abc import Sequence

from dockershim.debug.overview import Logs, Pod, Resyncs
from dockershim.debug.words import age, ago, clock, counted, duration, size
from dockershim.nri.view import NRIPlugins
from dockershim.state.outage import Absence


def of_pods(pods: Sequence[Pod]) -> str:
    """How many there are, and what they use."""
    containers = sum(len(pod.containers) for pod in pods)
    return ", ".join(
        (
            f"{counted(len(pods), 'pod')} ({sum(pod.ready for pod in pods)} ready)",
            f"{counted(containers, 'container')} ({sum(pod.running for pod in pods)} running)",
            counted(sum(pod.restarts for pod in pods), "restart"),
            f"{sum(pod.cpu_cores or 0 for pod in pods):.3f} CPUs",
            size(sum(pod.memory_bytes or 0 for pod in pods)),
        )
    )


def of_logs(logs: Logs | None) -> tuple[str, str]:
    """The state of container logs, and their problems. None if the log process does not respond."""
    if logs is None:
        return "", "the log process does not respond"
    rate, unread = size(logs.bytes_per_second), size(logs.unread_bytes)
    copied = f"{counted(logs.followed, 'log')} copied at {rate}/s, {unread} not yet copied"
    wrong = [f"{logs.blocked} cannot be written"] if logs.blocked else []
    wrong += [f"{size(logs.missing_bytes)} missing"] if logs.missing_bytes else []
    return copied, ", ".join(wrong)


def of_resyncs(resyncs: Resyncs, now: float) -> str:
    """When the last one was, and how many there were of each cause."""
    causes = ", ".join(f"{cause} {count}" for cause, count in sorted(resyncs.causes.items()) if count)
    last = f"{ago(resyncs.last, now)} in {duration(resyncs.seconds)}" if resyncs.count else "none yet"
    return f"{last}; since startup: {causes or 'none'}"


def of_nri(plugins: NRIPlugins, now: float) -> str:
    """The connected plugins, and the disconnected ones with the reason."""
    gone = (f"{one.name} disconnected {ago(one.time, now)}: {one.reason}" for one in plugins.gone)
    return "; ".join((", ".join(plugins.connected) or "none connected", *gone))


def of_outage(outage: Absence, now: float) -> str:
    """When it was, for how long, and why."""
    if outage.seconds is None:
        return f"ongoing for {age(now - outage.begun)}: {outage.reason}"
    when = f"{clock(outage.begun)}, for {duration(outage.seconds)}"
    return f"{when}, {counted(outage.refused, 'call')} refused: {outage.reason}"
