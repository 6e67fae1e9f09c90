"""The checks that requests share."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dockershim.api.cri.v1 import api_pb2 as cri
from dockershim.errors import InvalidArgument, Unsupported
from dockershim.translate.checks import check_enums, check_text, reject, require


def test_a_value_that_is_needed() -> None:
    require("a", "field")
    with pytest.raises(InvalidArgument, match=r"^field: ") as caught:
        require("", "field")
    assert type(caught.value) is InvalidArgument


def test_a_value_that_is_not_honoured() -> None:
    reject("", "field", "no")
    with pytest.raises(Unsupported, match=r"^field: no$"):
        reject("x", "field", "no")


@given(st.characters(exclude_categories=["Cc"]))
def test_text_has_any_character(character: str) -> None:
    check_text(f"a{character}", "field")


@pytest.mark.parametrize("character", [*map(chr, range(32)), "\x7f"])
def test_text_has_no_control_character(character: str) -> None:
    with pytest.raises(InvalidArgument, match=r"^field: control"):
        check_text(f"a{character}", "field")


@pytest.mark.parametrize(
    ("message", "where"),
    [
        pytest.param(cri.PortMapping(protocol=3), r"config\.protocol: 3 is not a valid Protocol", id="of the message"),  # type: ignore[arg-type]
        pytest.param(
            cri.PodSandboxConfig(port_mappings=[cri.PortMapping(), cri.PortMapping(protocol=3)]),  # type: ignore[arg-type]
            r"config\.port_mappings\.protocol: 3",
            id="of one in a list",
        ),
        pytest.param(
            cri.LinuxContainerSecurityContext(
                seccomp=cri.SecurityProfile(profile_type=-1)  # type: ignore[arg-type]
            ),
            r"config\.seccomp\.profile_type: -1 is not a valid ProfileType",
            id="of one inside, negative",
        ),
    ],
)
def test_an_unknown_enum_is_named(message: object, where: str) -> None:
    with pytest.raises(InvalidArgument, match=where):
        check_enums(message, "config")  # type: ignore[arg-type]


def test_maps_and_known_enums_pass() -> None:
    check_enums(cri.ContainerConfig(labels={"a": "b"}, stop_signal=cri.SIGNAL_SIGRTMAX), "config")
