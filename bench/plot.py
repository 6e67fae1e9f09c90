"""`python -m bench.plot RESULT TITLE > docs/performance/name.svg`: the calls of a kept result as bars, ours and theirs.

A bar is the median, the line at its end goes to the 95th percentile.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from xml.sax.saxutils import escape

#: Pixels.
WIDTH: Final = 760
NAMES: Final = 170
NUMBERS: Final = 70
BAR: Final = 12
ROW: Final = 2 * BAR + 14
TOP: Final = 64
COLOURS: Final = ("#1f6feb", "#9aa4b2")
INK: Final = "#1f2328"


def to_svg(title: str, subtitle: str, sides: tuple[str, str], calls: Sequence[Mapping[str, Any]]) -> str:
    """An SVG of all calls that both sides have: ``as_json`` of bench.comparison, milliseconds on one axis."""
    both = [call for call in calls if call["bare"]]
    longest = max(call[side]["p95_ms"] for call in both for side in ("ours", "bare"))
    scale = (WIDTH - NAMES - NUMBERS) / longest
    height = TOP + ROW * len(both) + 8
    drawn = [_text(12, 22, title, "16px", "600"), _text(12, 42, subtitle, "12px")]
    for number, (side, colour) in enumerate(zip(sides, COLOURS, strict=True)):
        left = WIDTH - 250 + number * 125
        drawn += [_box(left, 12, 12, 12, colour), _text(left + 18, 22, side, "12px")]
    for number, call in enumerate(both):
        drawn += _row(call, TOP + number * ROW, scale)
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}"'
        ' font-family="system-ui, sans-serif">'
    )
    return "\n".join((head, _box(0, 0, WIDTH, height, "#ffffff"), *drawn, "</svg>\n"))


def _row(call: Mapping[str, Any], top: int, scale: float) -> Iterator[str]:
    yield _text(12, top + BAR + 4, call["call"], "13px")
    for number, (side, colour) in enumerate(zip(("ours", "bare"), COLOURS, strict=True)):
        y = top + number * (BAR + 2)
        median, late = (NAMES + call[side][key] * scale for key in ("p50_ms", "p95_ms"))
        yield _box(NAMES, y, median - NAMES, BAR, colour)
        yield f'<path d="M{median:.1f} {y + BAR / 2}H{late:.1f}" stroke="{INK}" stroke-width="1"/>'
        yield _text(max(median, late) + 6, y + BAR - 2, f"{call[side]['p50_ms']:.3g} ms", "11px")


def _box(x: float, y: float, width: float, height: float, colour: str) -> str:
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{colour}"/>'


def _text(x: float, y: float, text: str, size: str, weight: str = "400") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" font-weight="{weight}" fill="{INK}">{escape(text)}</text>'


def main(argv: Sequence[str]) -> int:
    """Write the plot of a result to the standard output."""
    parser = argparse.ArgumentParser(prog="python -m bench.plot", description=__doc__)
    parser.add_argument("result", type=Path, help="a file of bench/results")
    parser.add_argument("title")
    parser.add_argument("--other", default="cri-dockerd", help="with what ours is compared in it")
    parser.add_argument("--calls", default="", help="only these, with commas")
    given = parser.parse_args(argv)
    result = json.loads(given.result.read_text())
    wanted = set(filter(None, given.calls.split(",")))
    calls = [call for call in result["calls"] if not wanted or call["call"] in wanted]
    subtitle = f"Docker {result['engine']}, {result['storage']}, {result['cpus']} CPUs, {result['date'][:10]}"
    sys.stdout.write(to_svg(given.title, subtitle, ("dockershim", given.other), calls))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
