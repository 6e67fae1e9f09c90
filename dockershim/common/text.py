"""Foreign text for people: names of pods, messages of engines and plugins."""

from __future__ import annotations

import json


def escape(text: str) -> str:
    """``text`` with every character that is not printable written as Python would write it in a literal.

    So no text can steer a terminal, or turn the direction of what stands behind it.
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


def escape_json(document: str) -> str:
    """A JSON document with the same content, in which every character that is not printable is an escape of JSON.

    Its lines stay. JSON itself lets through DEL, the control characters of ISO 6429 (C1), and those that turn the
    direction of a text.
    """
    return "\n".join(
        line if line.isprintable() else "".join(char if char.isprintable() else json.dumps(char)[1:-1] for char in line)
        for line in document.split("\n")
    )
