"""CRI's Signal enum and the engine's signal names."""

from __future__ import annotations

import signal as os_signal

from dockershim.api.cri.v1 import api_pb2 as cri

_RENAMED = {"RTMINPLUS": "RTMIN+", "RTMAXMINUS": "RTMAX-"}


def to_engine_signal(signal: cri.Signal) -> str:
    """``SIGNAL_SIGRTMINPLUS3`` is ``SIGRTMIN+3``; the runtime's default is the empty string (the image's)."""
    return "" if signal == cri.SIGNAL_RUNTIME_DEFAULT else _engine_name(cri.Signal.Name(signal))


def _engine_name(name: str) -> str:
    name = name.removeprefix("SIGNAL_")
    for cri_part, engine_part in _RENAMED.items():
        name = name.replace(cri_part, engine_part)
    return name


_TO_CRI = {_engine_name(name): name for name in cri.Signal.keys()}  # noqa: SIM118


def to_cri_signal(signal: str) -> str:
    """The name in CRI's enum of an engine's stop signal, itself a name or a number; the default where CRI has none."""
    if signal.isdecimal():
        try:
            signal = os_signal.Signals(int(signal)).name
        except ValueError:
            return "SIGNAL_RUNTIME_DEFAULT"
    full = signal if signal.startswith("SIG") else "SIG" + signal
    return _TO_CRI.get(full, "SIGNAL_RUNTIME_DEFAULT")
