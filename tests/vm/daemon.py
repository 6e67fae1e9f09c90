"""The engine's daemon.json in a guest."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from tests.vm.guest import Guest

_PATH: Final = "/etc/docker/daemon.json"
_SECONDS: Final = 300


@contextmanager
def changed(guest: Guest, settings: Mapping[str, Any]) -> Iterator[None]:
    """These settings are among the engine's for the length of a block. It takes them without a restart."""
    before = guest.read(_PATH)
    _write(guest, json.dumps(json.loads(before) | settings))
    try:
        yield
    finally:
        _write(guest, before)


def _write(guest: Guest, text: str) -> None:
    guest.sh(f"cat >{_PATH} && systemctl reload docker", input=text, timeout=_SECONDS)
