"""Every signal of the CRI has a name that engines know, and comes back from it."""

from __future__ import annotations

import signal

import pytest

from dockershim.api.cri.v1 import api_pb2 as cri
from dockershim.translate.signals import to_cri_signal, to_engine_signal

#: The names of moby's table of signals on Linux, without SIG.
_PLAIN_SIGNALS = """
    ABRT ALRM BUS CHLD CLD CONT FPE HUP ILL INT IO IOT KILL PIPE POLL PROF PWR QUIT SEGV STKFLT STOP SYS
    TERM TRAP TSTP TTIN TTOU URG USR1 USR2 VTALRM WINCH XCPU XFSZ RTMIN RTMAX
"""
ENGINE_SIGNALS = {
    *_PLAIN_SIGNALS.split(),
    *(f"RTMIN+{number}" for number in range(1, 16)),
    *(f"RTMAX-{number}" for number in range(1, 15)),
}
NAMED = [name for name in cri.Signal.keys() if name != "SIGNAL_RUNTIME_DEFAULT"]  # noqa: SIM118


def test_all_65_are_tested() -> None:
    assert len(NAMED) == 65


@pytest.mark.parametrize("name", NAMED)
def test_each_is_an_engines_and_comes_back(name: str) -> None:
    config = cri.ContainerConfig(stop_signal=cri.Signal.Value(name))  # type: ignore[arg-type]
    engine_name = to_engine_signal(config.stop_signal)

    assert engine_name.removeprefix("SIG") in ENGINE_SIGNALS
    assert to_cri_signal(engine_name) == name


def test_the_default_leaves_the_choice_to_the_image() -> None:
    assert to_engine_signal(cri.SIGNAL_RUNTIME_DEFAULT) == ""


@pytest.mark.parametrize(
    ("engine", "expected"),
    [
        pytest.param("SIGTERM", "SIGNAL_SIGTERM", id="the full name"),
        pytest.param("TERM", "SIGNAL_SIGTERM", id="the short name"),
        pytest.param("sigquit", "SIGNAL_SIGQUIT", id="small letters, which an engine takes"),
        pytest.param("15", "SIGNAL_SIGTERM", id="a number"),
        pytest.param("6", "SIGNAL_SIGABRT", id="a number with two names"),
        pytest.param("34", "SIGNAL_SIGRTMIN", id="the first real-time number"),
        pytest.param("37", "SIGNAL_SIGRTMINPLUS3", id="a real-time number, as systemd's images have it"),
        pytest.param("50", "SIGNAL_SIGRTMAXMINUS14", id="the first number counted from the end"),
        pytest.param("64", "SIGNAL_SIGRTMAX", id="the last number"),
        pytest.param("65", "SIGNAL_RUNTIME_DEFAULT", id="a number of no signal"),
        pytest.param("32", "SIGNAL_RUNTIME_DEFAULT", id="a number that the C library keeps for itself"),
        pytest.param("SIGFOO", "SIGNAL_RUNTIME_DEFAULT", id="a name of no signal"),
        pytest.param("", "SIGNAL_RUNTIME_DEFAULT", id="none"),
        pytest.param("RUNTIME_DEFAULT", "SIGNAL_RUNTIME_DEFAULT", id="the CRI's own word is no signal"),
    ],
)
def test_what_engines_and_images_write(engine: str, expected: str) -> None:
    assert to_cri_signal(engine) == expected


def test_every_number_of_a_signal_is_known() -> None:
    known = {number for number in range(1, 70) if to_cri_signal(str(number)) != "SIGNAL_RUNTIME_DEFAULT"}

    assert known == set(map(int, signal.valid_signals()))
