"""Lists made of encoded parts."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dockershim.api.cri.v1 import api_pb2 as cri
from dockershim.common.wire import Encoded, field, in_chunks, varint

_NAMES = st.lists(st.text(max_size=30), max_size=30)


def part(name: str) -> bytes:
    return cri.ListContainersResponse(containers=[cri.Container(id=name, labels={"name": name})]).SerializeToString()


@given(_NAMES)
def test_parts_joined_are_the_list(names: list[str]) -> None:
    joined = Encoded(b"".join(map(part, names))).SerializeToString()
    assert [one.id for one in cri.ListContainersResponse.FromString(joined).containers] == names


@given(_NAMES, st.integers(1, 200))
def test_chunks_have_everything_once_in_its_order_and_are_bounded(names: list[str], size: int) -> None:
    parts = [part(name) for name in names]
    chunks = [chunk.wire for chunk in in_chunks(parts, size)]
    read = [one.id for chunk in chunks for one in cri.StreamContainersResponse.FromString(chunk).containers]
    assert read == names
    assert all(len(chunk) <= size or chunk in parts for chunk in chunks)


@given(st.integers(0, 2**64 - 1), st.text(max_size=300))
def test_numbers_and_texts_are_as_the_library_writes_them(number: int, text: str) -> None:
    value = cri.UInt64Value(value=number).SerializeToString()
    assert (b"\x08" + varint(number) if number else b"") == value
    assert field(1, text.encode()) == (cri.Container(id=text).SerializeToString() or b"\x0a\x00")
    assert cri.CpuUsage.FromString(field(2, value)).usage_core_nano_seconds.value == number
