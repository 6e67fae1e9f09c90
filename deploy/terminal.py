"""Output for the person at the terminal."""

from __future__ import annotations

import sys


def say(text: str = "") -> None:
    """Print one line, without buffering even if the output is a pipe."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
