"""Foreign text for people: names of pods, messages of engines and plugins."""

from __future__ import annotations


def escape(text: str) -> str:
    """``text`` with every character that is not printable written as Python would write it in a literal.

    So no text can steer a terminal, or turn the direction of what stands behind it.
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)
