"""Reads the debug page for tests."""

from __future__ import annotations

import re
from html.parser import HTMLParser


class Reader(HTMLParser):
    """A page: its tags with their attributes, those that are still ``open`` at its end, and the text of its rows."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.open: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "rect"):
            self.open.append(tag)
        if tag in ("tr", "p", "summary", "h1", "h2"):
            self.texts.append("")

    def handle_endtag(self, tag: str) -> None:
        if tag == "rect":
            return
        assert self.open.pop() == tag
        if tag in ("td", "th"):
            self.texts[-1] += " | "

    def handle_data(self, data: str) -> None:
        if "style" not in self.open and self.texts:
            self.texts[-1] += data

    def rows(self) -> list[str]:
        return [re.sub(r"\s+", " ", text).strip(" |") for text in self.texts]
