"""A plugin in Go, built from the module of this folder into the cache."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tests.conformance import tools

NAME: Final = "nri-test-plugin"
_MODULE: Final = Path(__file__).parent


def provide() -> Path:
    """The folder with the plugin, built once for each content of the module."""
    return tools.built("nri-plugin", _MODULE, ("build", "-o", NAME, "./plugin"))
