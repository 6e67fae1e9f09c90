"""SPEC.md section 3 "Attachment Parameters": what an attachment may be made of."""

from __future__ import annotations

from typing import Any

import pytest

import cni


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"container_id": "a" * 64}, id="an id of an engine"),
        pytest.param({"container_id": "A_1.b-c"}, id="every kind of character"),
        pytest.param({"ifname": "a" * 15}, id="longest interface name"),
        pytest.param({"ifname": "eth0.100"}, id="a dot inside"),
        pytest.param({"args": (("K8S_POD_NAME", "a=b"),)}, id="'=' in a value"),
        pytest.param({"args": (("EMPTY", ""),)}, id="empty value"),
        pytest.param({"netns": None}, id="no namespace"),
    ],
)
def test_allowed(fields: dict[str, Any]) -> None:
    cni.Attachment(**{"container_id": "c1", **fields})


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"container_id": ""}, id="no id"),
        pytest.param({"container_id": ".."}, id="id is the folder above"),
        pytest.param({"container_id": "a/b"}, id="id with a slash"),
        pytest.param({"container_id": "a\n"}, id="id with a newline at its end"),
        pytest.param({"container_id": "-a"}, id="id begins with a hyphen"),
        pytest.param({"container_id": "é"}, id="id is not ASCII"),
        pytest.param({"ifname": ""}, id="no interface"),
        pytest.param({"ifname": "a" * 16}, id="interface too long"),
        pytest.param({"ifname": "é" * 8}, id="interface too long in bytes"),
        pytest.param({"ifname": ".."}, id="interface is the folder above"),
        pytest.param({"ifname": "a/b"}, id="interface with a slash"),
        pytest.param({"ifname": "a:b"}, id="interface with a colon"),
        pytest.param({"ifname": "a b"}, id="interface with a space"),
        pytest.param({"ifname": "a\0b"}, id="interface with a zero byte"),
        pytest.param({"netns": "/run/\0"}, id="namespace with a zero byte"),
        pytest.param({"netns": "\ud800"}, id="namespace that is no text"),
        pytest.param({"args": (("A", "1;B=2"),)}, id="a value that begins another argument"),
        pytest.param({"args": (("A=B", "1"),)}, id="'=' in a key"),
        pytest.param({"args": (("", "1"),)}, id="no key"),
    ],
)
def test_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(cni.AttachmentError):
        cni.Attachment(**{"container_id": "c1", **fields})
