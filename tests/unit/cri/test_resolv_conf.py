"""The pod's resolv.conf on a disk without room."""

from __future__ import annotations

import pytest

from dockershim.cri.sandbox_run import _write_resolv_conf
from dockershim.errors import ResourceExhausted
from dockershim.translate.names import SandboxName
from dockershim.translate.records import SandboxRecord


def test_a_full_disk_is_told_with_the_file() -> None:
    record = SandboxRecord(
        id="5a" * 32,
        name=SandboxName("web", "ns", "uid", 0),
        running=True,
        created_at=1,
        labels={},
        annotations={},
        runtime_handler="",
        network_mode="none",
        made_here=True,
        resolv_conf_path="/dev/full",
    )
    with pytest.raises(ResourceExhausted, match=r"resolv\.conf, /dev/full, cannot be written: No space left"):
        _write_resolv_conf(record, "nameserver 10.0.0.10\n")
