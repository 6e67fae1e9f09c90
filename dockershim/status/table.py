"""The view of a node for a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from dockershim.common.text import escape
from dockershim.debug.overview import RUNNING, Container, Overview, Pod
from dockershim.debug.sentences import of_logs, of_nri, of_outage, of_pods, of_resyncs
from dockershim.debug.words import age, ago, cores, counted, rate, size

_GOOD: Final = "green"
_BAD: Final = "bold red"
_DIM: Final = "dim"
#: A live view shows so many failed calls, and leaves the other lines to the pods.
_FAILED_IN_LIVE: Final = 5
#: And so many containers of a pod, so that a pod of many does not hide the others.
_CONTAINERS_IN_LIVE: Final = 4
#: The empty lines, the table's heading, and the line of what is left out.
_LINES_BETWEEN: Final = 4


def render(overview: Overview, height: int | None = None) -> Group:
    """The view in ``height`` lines, the busiest pods first; without a height all pods by name, and all failed calls."""
    is_live = height is not None
    head = [Text.assemble(*line) for line in _head(overview)]
    if overview.problem:
        head.append(Text(escape(overview.problem), style=_BAD))
    failed = list(_failed_calls(overview, _FAILED_IN_LIVE if is_live else None))
    for line in head + failed:
        line.no_wrap, line.overflow = is_live, "ellipsis"
    parts: list[RenderableType] = [*head]
    if overview.pods is not None:
        room = None if height is None else max(3, height - len(parts) - len(failed) - _LINES_BETWEEN)
        parts += ["", *_pods(overview, room)]
    if failed:
        parts += ["", *failed]
    return Group(*parts)


def _head(overview: Overview) -> Iterator[list[tuple[str, str]]]:
    server = f"dockershim {escape(overview.server)}" if overview.server else "this server is not dockershim"
    line = [(server, "bold")]
    if overview.engine:
        line.append((f"  Docker {escape(overview.engine)}", ""))
    for condition in overview.conditions:
        line.append((f"  {escape(condition.type)} ", ""))
        line.append(("yes", _GOOD) if condition.ok else ("no", _BAD))
    yield line
    for condition in overview.conditions:
        if not condition.ok:
            yield [(f"{escape(condition.type)}: {escape(condition.message)}", _BAD)]
    if overview.pods is not None:
        yield [(of_pods(overview.pods), "")]
    if overview.logs is not None or overview.server:
        said, wrong = of_logs(overview.logs)
        yield [(said, ""), (", " if said and wrong else "", ""), (wrong, _BAD)]
    outage = overview.outage
    if outage is not None:
        told, style = escape(of_outage(outage, overview.time)), _BAD if outage.seconds is None else ""
    else:
        told, style = "none" if overview.server else "unknown", ""
    yield [("last outage of the engine: ", ""), (told, style)]
    if overview.resyncs is not None:
        yield [(f"last resync: {escape(of_resyncs(overview.resyncs, overview.time))}", "")]
    if overview.nri is not None:
        yield [(f"NRI plugins: {escape(of_nri(overview.nri, overview.time))}", "")]


def _pods(overview: Overview, room: int | None) -> Iterator[RenderableType]:
    pods = list(overview.pods or ())
    if room is not None:
        pods.sort(key=lambda pod: (-(pod.cpu_cores or 0), -(pod.memory_bytes or 0), pod.namespace, pod.name))
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    # The only column that may become narrower: a long name of a pod must not squeeze the numbers.
    table.add_column("POD")
    table.add_column("READY", no_wrap=True)
    for name in ("CONTAINERS", "RESTARTS", "CPU", "MEMORY", "LOGS", "AGE"):
        table.add_column(name, justify="right", no_wrap=True)
    shown, lines = 0, 0
    for pod in pods:
        rows = [_pod_row(pod, overview.time), *_container_rows(pod, None if room is None else _CONTAINERS_IN_LIVE)]
        lines += len(rows)
        if room is not None and lines > room:
            break
        shown += 1
        for row in rows:
            table.add_row(*row)
    yield table
    if shown < len(pods):
        yield Text(f"and {counted(len(pods) - shown, 'pod')} more; --once shows all", style=_DIM)


def _container_rows(pod: Pod, most: int | None) -> Iterator[list[Text]]:
    if pod.is_plain:
        return
    # Those that do not run come first, if not all of them can be shown.
    containers = pod.containers if most is None else sorted(pod.containers, key=lambda one: one.state == RUNNING)[:most]
    yield from map(_container_row, containers)
    if len(containers) < len(pod.containers):
        yield [Text(f"  and {counted(len(pod.containers) - len(containers), 'container')} more", style=_DIM)]


def _pod_row(pod: Pod, now: float) -> list[Text]:
    return [
        _name(f"{pod.namespace}/{pod.name}"),
        Text("yes", style=_GOOD) if pod.ready else Text("no", style=_BAD),
        Text(f"{pod.running}/{len(pod.containers)}"),
        Text(str(pod.restarts), style=_BAD if pod.restarts else ""),
        Text(cores(pod.cpu_cores)),
        Text(size(pod.memory_bytes)),
        Text(rate(pod.log_bytes_per_second)),
        Text(age(now - pod.created)),
    ]


def _container_row(container: Container) -> list[Text]:
    style = _DIM if container.state == RUNNING else ""
    cells = (
        f"  {container.name}",
        "",
        container.state,
        str(container.restarts),
        cores(container.cpu_cores),
        size(container.memory_bytes),
        rate(container.log_bytes_per_second),
        "",
    )
    return [_name(cells[0], style), *(Text(cell, style=style) for cell in cells[1:])]


def _name(foreign: str, style: str = "") -> Text:
    return Text(escape(foreign), style=style, no_wrap=True, overflow="ellipsis")


def _failed_calls(overview: Overview, most: int | None) -> Iterator[Text]:
    """A line for each with what failed, and one with the message: these are too long for a column."""
    calls = overview.failed_calls if most is None else overview.failed_calls[:most]
    if calls:
        yield Text("FAILED CALLS", style="bold")
    for call in calls:
        subject = " ".join(filter(None, (call.pod, call.container)))
        head = f"{call.rpc}  {subject}  " if subject else f"{call.rpc}  "
        times = f"  {counted(call.count, 'time')}, last {ago(call.last, overview.time)}"
        yield Text.assemble(escape(head), (escape(call.code), _BAD), times)
        yield Text(f"  {escape(call.message)}", style=_DIM)
