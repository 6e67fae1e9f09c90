"""Converts the CRI's Signal enum to the engine's signal names, and back."""

from __future__ import annotations

import signal as os_signal

from dockershim.api.cri.v1 import api_pb2 as cri

_RENAMED = {"RTMINPLUS": "RTMIN+", "RTMAXMINUS": "RTMAX-"}


def to_engine_signal(signal: cri.Signal) -> str:
    """``SIGRTMIN+3`` for ``SIGNAL_SIGRTMINPLUS3``; empty, which means the image's signal, for the runtime's default."""
    return "" if signal == cri.SIGNAL_RUNTIME_DEFAULT else _engine_name(cri.Signal.Name(signal))


def _engine_name(name: str) -> str:
    name = name.removeprefix("SIGNAL_")
    for cri_part, engine_part in _RENAMED.items():
        name = name.replace(cri_part, engine_part)
    return name


_TO_CRI = {_engine_name(name): name for name in cri.Signal.keys()}  # noqa: SIM118


#: Signal names by number. If a number has two names: Python's name; for real-time signals the one from RTMIN.
_BY_NUMBER = {
    **{str(64 - distance): f"SIGRTMAX-{distance}" for distance in range(1, 15)},
    **{str(34 + distance): f"SIGRTMIN+{distance}" for distance in range(1, 16)},
    **{str(int(signal)): signal.name for signal in os_signal.Signals},
}


def to_cri_signal(signal: str) -> str:
    """The name in the CRI's enum of the engine's stop signal; the default if the CRI has none for it.

    The engine takes names in any case, with and without SIG, and numbers (34 to 64 for real-time signals).
    """
    name = _BY_NUMBER.get(signal, signal).upper()
    return _TO_CRI.get(name if name.startswith("SIG") else "SIG" + name, "SIGNAL_RUNTIME_DEFAULT")
