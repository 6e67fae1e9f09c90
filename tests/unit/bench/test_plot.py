"""The bars of a kept result."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree

from bench.comparison import Comparison
from bench.plot import to_svg

SVG = "{http://www.w3.org/2000/svg}"


def bars(svg: str, colour: str) -> list[float]:
    """The widths of the bars of one side, without its box in the legend."""
    found = [box for box in ElementTree.fromstring(svg).iter(f"{SVG}rect") if box.get("fill") == colour]
    return [float(box.get("width", "")) for box in found[1:]]


def test_bars_are_as_long_as_the_medians_are() -> None:
    calls: list[dict[str, Any]] = [
        Comparison("RunPodSandbox", [0.1] * 5, [0.2] * 5).as_json(),
        Comparison("Version", [0.1] * 5).as_json(),
        Comparison("<Stop> & go", [0.05] * 5, [0.1] * 5).as_json(),
    ]
    svg = to_svg("A <title>", "Docker 28", ("ours", "theirs"), calls)
    ours, theirs = bars(svg, "#1f6feb"), bars(svg, "#9aa4b2")
    assert [round(one / ours[0], 2) for one in ours] == [1.0, 0.5]
    assert [round(one / ours[0], 2) for one in theirs] == [2.0, 1.0]
    texts = [text.text for text in ElementTree.fromstring(svg).iter(f"{SVG}text")]
    assert {"A <title>", "<Stop> & go", "100 ms"} <= set(texts)
    assert "Version" not in texts
