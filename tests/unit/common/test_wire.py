"""Lists made of encoded parts."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dockershim.api.cri.v1 import api_pb2 as cri
from dockershim.common.wire import Encoded, field, in_chunks

_NAMES = st.lists(st.text(max_size=30), max_size=30)


def part(name: str) -> bytes:
    return cri.ListContainersResponse(containers=[cri.Container(id=name, labels={"name": name})]).SerializeToString()


@given(_NAMES)
def test_parts_joined_are_the_list(names: list[str]) -> None:
    joined = Encoded[cri.ListContainersResponse](b"".join(map(part, names))).SerializeToString()
    assert [one.id for one in cri.ListContainersResponse.FromString(joined).containers] == names


@given(_NAMES, st.integers(1, 200))
def test_chunks_have_everything_once_in_its_order_and_are_bounded(names: list[str], size: int) -> None:
    parts = [part(name) for name in names]
    chunks = [chunk.wire for chunk in in_chunks(cri.StreamContainersResponse, parts, size)]
    read = [one.id for chunk in chunks for one in cri.StreamContainersResponse.FromString(chunk).containers]
    assert read == names
    assert all(len(chunk) <= size or chunk in parts for chunk in chunks)


@given(st.text(max_size=300), st.text(max_size=300))
def test_a_field_is_as_the_library_writes_it(name: str, image: str) -> None:
    parts = [cri.Container(id=name).SerializeToString(), cri.Container(image_ref=image).SerializeToString()]
    whole = cri.ListContainersResponse(containers=[cri.Container(id=name, image_ref=image)])
    assert field(1, *parts) == whole.SerializeToString()
    # Its number takes two bytes.
    resources = cri.ContainerResources(windows=cri.WindowsContainerResources(rootfs_size_in_bytes=len(name)))
    status = cri.ContainerStatus(resources=resources)
    assert field(16, resources.SerializeToString()) == status.SerializeToString()
