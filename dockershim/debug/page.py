"""The debug page: one HTML text without scripts and without external resources. Pure."""

from __future__ import annotations

import base64
import hashlib
import html
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from dockershim.common.text import escape
from dockershim.debug.overview import RUNNING, Container, Overview, Pod
from dockershim.debug.sentences import of_logs, of_nri, of_outage, of_pods, of_resyncs
from dockershim.debug.starts import PLUGIN, PodStart, Span
from dockershim.debug.words import age, ago, clock, cores, duration, rate, size

#: The number of newest starts that are expanded when the page is loaded.
_OPEN: Final = 3
#: Seconds after which the page reloads, if that is enabled.
REFRESH: Final = 5

_STYLE: Final = """
:root { color-scheme: light dark; --line: #8884; --good: #1a7f37; --bad: #cf222e; --faint: #777; }
body { font: 14px/1.45 system-ui, sans-serif; margin: 1.2rem auto; padding: 0 1rem; max-width: 75rem;
       overflow-wrap: anywhere; }
h1 { font-size: 1.35rem; margin: 0 0 .2rem; } h2 { font-size: 1.1rem; margin: 1.8rem 0 .4rem; }
p { margin: .3rem 0; } nav a { margin-right: .8rem; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; padding: .15rem .8rem .15rem 0; border-bottom: 1px solid var(--line); vertical-align: top; }
th { font-weight: 600; white-space: nowrap; } td:first-child { min-width: 12rem; }
.n { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
.k { white-space: nowrap; }
.good { color: var(--good); } .bad { color: var(--bad); font-weight: 600; } .faint { color: var(--faint); }
.part td { color: var(--faint); border-bottom: 0; } .d1 { padding-left: 1.2rem; } .d2 { padding-left: 2.4rem; }
.state { font-weight: 600; border: 1px solid; border-radius: .3rem; padding: .05rem .5rem; }
.bars { width: 42%; padding-right: 0; } .bars svg { display: block; width: 100%; height: 1.2rem; }
.call { fill: #54789c; } .step { fill: #6fa8dc; } .plugin { fill: #e8a33d; } .failed { fill: var(--bad); }
summary { cursor: pointer; padding: .3rem 0; } summary b { margin-right: .6rem; }
details { border-bottom: 1px solid var(--line); } details table { margin-bottom: .8rem; }
details td, details th { border-bottom: 0; padding-top: 0; padding-bottom: 0; }
"""

#: The browser loads nothing, runs nothing, takes only our style, and shows the page in no frame.
POLICY: Final = (
    "default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'; "
    f"style-src 'sha256-{base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()}'"
)


def render(node: str, overview: Overview, starts: Sequence[PodStart]) -> str:
    """The page of a node of this name. ``starts`` come newest first."""
    return "".join(
        (
            "<!DOCTYPE html>\n<html lang=en><head><meta charset=utf-8>",
            "<meta name=viewport content='width=device-width, initial-scale=1'>",
            f"<title>{_text(node)}: dockershim</title><style>{_STYLE}</style></head><body>\n",
            *_head(node, overview),
            *_durations(starts),
            *_starts(starts, overview.time),
            *_failed_calls(overview),
            *_pods(overview),
            "</body></html>\n",
        )
    )


def _text(foreign: str) -> str:
    """Foreign text, for between tags and for quoted attributes."""
    return html.escape(escape(foreign), quote=True)


def _table(*columns: str) -> str:
    """The begin of a table. A column of numbers ends with a space; one without a name has bars."""
    kinds = ("<th class=bars>" if not name else "<th class=n>" if name.endswith(" ") else "<th>" for name in columns)
    heads = "".join(f"{kind}{name.strip()}</th>" for kind, name in zip(kinds, columns, strict=True))
    return f"<table>\n<tr>{heads}</tr>\n"


def _head(node: str, overview: Overview) -> Iterator[str]:
    state = "<span class='state good'>ready</span>" if overview.is_ready else "<span class='state bad'>not ready</span>"
    yield f"<h1>{_text(node)} {state}</h1>\n"
    yield f"<p>dockershim {_text(overview.server)}, Docker {_text(overview.engine) or '(unknown)'}. "
    yield f"As of {clock(overview.time)}. Auto-refresh: <a href='/?refresh'>every {REFRESH} s</a>, "
    yield "<a href='/'>off</a>.</p>\n"
    yield "<nav><a href='#durations'>Durations</a><a href='#starts'>Pod starts</a>"
    yield "<a href='#failed'>Failed calls</a><a href='#pods'>Pods</a></nav>\n<table>\n"
    for condition in overview.conditions:
        problem = f"<span class=bad>no: {_text(condition.message)}</span>"
        told = "<span class=good>yes</span>" if condition.ok else problem
        yield f"<tr><th>{_text(condition.type)}</th><td>{told}</td></tr>\n"
    if overview.problem:
        yield f"<tr><th>Pods</th><td class=bad>{_text(overview.problem)}</td></tr>\n"
    if overview.pods is not None:
        yield f"<tr><th>Pods</th><td>{_text(of_pods(overview.pods))}</td></tr>\n"
    said, wrong = map(_text, of_logs(overview.logs))
    between = ", " if said and wrong else ""
    yield f"<tr><th>Container logs</th><td>{said}{between}<span class=bad>{wrong}</span></td></tr>\n"
    told = "none since startup"
    if overview.outage is not None:
        told = _text(of_outage(overview.outage, overview.time))
        told = f"<span class=bad>{told}</span>" if overview.outage.seconds is None else told
    yield f"<tr><th>Last outage of the engine</th><td>{told}</td></tr>\n"
    if overview.resyncs is not None:
        told = _text(of_resyncs(overview.resyncs, overview.time))
        yield f"<tr><th>Last resync</th><td>{told}</td></tr>\n"
    if overview.nri is not None:
        yield f"<tr><th>NRI plugins</th><td>{_text(of_nri(overview.nri, overview.time))}</td></tr>\n"
    yield "</table>\n"


# -- Pod starts.


@dataclass(frozen=True, slots=True)
class Durations:
    """The durations of all spans of one kind: a call, a step of a call, or a plugin that a call ran."""

    name: str
    depth: int
    seconds: tuple[float, ...]


def durations(starts: Iterable[PodStart]) -> list[Durations]:
    """The calls of these starts, the longest in total first; each is followed by its steps, and these by plugins."""
    taken: dict[tuple[str, ...], list[float]] = {}
    for start in starts:
        for span in start.spans:
            taken.setdefault(_path(span, start.spans), []).append(span.seconds or 0.0)
    sums = {path: sum(seconds) for path, seconds in taken.items()}

    def order(path: tuple[str, ...]) -> list[tuple[float, str]]:
        return [(-sums.get(path[: length + 1], 0.0), path[length]) for length in range(len(path))]

    return [Durations(path[-1], len(path) - 1, tuple(taken[path])) for path in sorted(taken, key=order)]


def _path(span: Span, spans: Sequence[Span]) -> tuple[str, ...]:
    """The names of what a span is part of, from the call on, and its own. A plugin need not be part of a step."""
    if span.depth == 0:
        return (span.call,)
    if span.depth == 1:
        return span.call, span.name
    middle = (span.begun + span.end) / 2
    around = (one.name for one in spans if one.depth == 1 and one.call == span.call and one.begun <= middle <= one.end)
    return span.call, *around, span.name


def _durations(starts: Sequence[PodStart]) -> Iterator[str]:
    yield f"<h2 id=durations>Durations in the last pod starts ({len(starts)})</h2>\n"
    found = durations(starts)
    if not found:
        yield "<p>No pod was started since startup.</p>\n"
        return
    longest = max(sum(one.seconds) for one in found)
    yield _table("Call, step, plugin", "Count ", "Median ", "Maximum ", "Total ", "")
    for one in found:
        whole = sum(one.seconds)
        bar = _bar(0.0, whole / longest if longest else 0.0, _fill(one))
        yield f"<tr><td class=d{one.depth}>{_text(one.name)}</td>"
        numbers = (str(len(one.seconds)), *map(duration, (median(one.seconds), max(one.seconds), whole)))
        yield "".join(f"<td class=n>{number}</td>" for number in numbers) + f"<td class=bars>{bar}</td></tr>\n"
    yield "</table>\n"


def _fill(shown: Durations | Span) -> str:
    return "call" if shown.depth == 0 else "plugin" if shown.name.startswith(PLUGIN) else "step"


def _starts(starts: Sequence[PodStart], now: float) -> Iterator[str]:
    yield "<h2 id=starts>Pod starts, newest first</h2>\n"
    yield "<p class=faint>Gaps between calls are time spent in the kubelet. Dark blue: calls. Light blue: steps. "
    yield "Orange: plugins. Red: failed.</p>\n"
    for number, start in enumerate(starts):
        failed = [span for span in start.spans if span.depth == 0 and span.code not in ("", "OK")]
        lasts = any(not span.code for span in start.spans)
        yield f"<details{' open' if number < _OPEN else ''}><summary><b>{_text(start.pod)}</b> "
        yield f"{duration(start.end)}, {duration(in_calls(start))} of it in calls, {ago(start.begun, now)}"
        yield f", attempt {start.tries}" if start.tries > 1 else ""
        yield ", <span class=bad>failed</span>" if failed else ""
        yield ", in progress" if lasts else ""
        yield f"</summary>\n{_table('Call, step, plugin', 'Start ', 'Duration ', '')}"
        # A step is noted at its end, a plugin before the step that runs it.
        for span in sorted(start.spans, key=lambda span: (span.begun, span.depth)):
            yield _span_row(span, start.end)
        yield "</table></details>\n"


def in_calls(start: PodStart) -> float:
    """Seconds in which one or more calls of this start ran."""
    total, until = 0.0, 0.0
    for span in sorted((span for span in start.spans if span.depth == 0), key=lambda span: span.begun):
        total += max(0.0, span.end - max(span.begun, until))
        until = max(until, span.end)
    return total


def _span_row(span: Span, whole: float) -> str:
    is_bad = span.code not in ("", "OK")
    name = f"{_text(span.name)} <span class=faint>{_text(span.subject)}</span>" if span.subject else _text(span.name)
    code = f" <span class=bad>{_text(span.code)}</span>" if is_bad else "" if span.code else " ..."
    fill = "failed" if is_bad else _fill(span)
    bar = _bar(span.begun / whole, (span.seconds or 0.0) / whole, fill) if whole else ""
    return (
        f"<tr><td class=d{span.depth}>{name}{code}</td><td class=n>{duration(span.begun)}</td>"
        f"<td class=n>{duration(span.seconds)}</td><td class=bars>{bar}</td></tr>\n"
    )


def _bar(begin: float, share: float, fill: str) -> str:
    """A bar in its row, by shares of the row; never so short that it cannot be seen."""
    width = max(share, 0.003)
    begin = min(begin, 1 - width)
    return (
        f"<svg aria-hidden=true><rect x='{begin * 100:.2f}%' y='15%' width='{width * 100:.2f}%' height='70%'"
        f" class={fill} /></svg>"
    )


# -- Failed calls, and pods.


def _failed_calls(overview: Overview) -> Iterator[str]:
    yield "<h2 id=failed>Failed calls, newest first</h2>\n"
    if not overview.failed_calls:
        yield "<p>None since startup.</p>\n"
        return
    yield _table("Pod, container", "Call", "Code", "Count ", "Last ", "Message")
    for call in overview.failed_calls:
        yield (
            f"<tr><td>{_text(f'{call.pod} {call.container}')}</td><td class=k>{_text(call.rpc)}</td>"
            f"<td class=k>{_text(call.code)}</td><td class=n>{call.count}</td>"
            f"<td class=n>{ago(call.last, overview.time)}</td>"
            f"<td>{_text(call.message)}</td></tr>\n"
        )
    yield "</table>\n"


def _pods(overview: Overview) -> Iterator[str]:
    yield "<h2 id=pods>Pods</h2>\n"
    if overview.pods is None:
        yield "<p>Unknown.</p>\n"
        return
    yield _table("Pod, container", "Ready", "Containers ", "Restarts ", "CPUs ", "Memory ", "Logs ", "Age ")
    for pod in overview.pods:
        yield _pod_row(pod, overview.time)
        if not pod.is_plain:
            yield from map(_container_row, pod.containers)
    yield "</table>\n"


def _pod_row(pod: Pod, now: float) -> str:
    ready = "<span class=good>yes</span>" if pod.ready else "<span class=bad>no</span>"
    restarts = f"<span class=bad>{pod.restarts}</span>" if pod.restarts else "0"
    numbers = (
        f"{pod.running}/{len(pod.containers)}",
        restarts,
        cores(pod.cpu_cores),
        size(pod.memory_bytes),
        rate(pod.log_bytes_per_second),
        age(now - pod.created),
    )
    cells = "".join(f"<td class=n>{number}</td>" for number in numbers)
    return f"<tr><td>{_text(f'{pod.namespace}/{pod.name}')}</td><td>{ready}</td>{cells}</tr>\n"


def _container_row(container: Container) -> str:
    state = container.state if container.state == RUNNING else f"<b>{_text(container.state)}</b>"
    numbers = (
        "",
        str(container.restarts),
        cores(container.cpu_cores),
        size(container.memory_bytes),
        rate(container.log_bytes_per_second),
        "",
    )
    cells = "".join(f"<td class=n>{number}</td>" for number in numbers)
    return f"<tr class=part><td class=d1>{_text(container.name)}</td><td>{state}</td>{cells}</tr>\n"
