"""What is said to the person at the terminal."""

from __future__ import annotations

import sys


def say(text: str = "") -> None:
    """One line, there at once also when the output is a pipe."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
