"""What is found out of a node by its own files."""

from __future__ import annotations

from pathlib import Path

import pytest

from dockershim.common.mountinfo import parse
from dockershim.stats.machine import huge_page_sizes, mounted_device

MOUNTS = """\
22 1 254:0 / / rw,relatime - ext4 /dev/vda rw
23 22 0:21 / /proc rw,nosuid shared:5 - proc proc rw
24 22 8:17 /images /var/lib/docker rw,relatime shared:9 master:1 - xfs /dev/sdb1 rw,noquota
"""


@pytest.mark.parametrize(
    ("number", "device"),
    [
        pytest.param("254:0", "/dev/vda", id="no optional fields"),
        pytest.param("8:17", "/dev/sdb1", id="optional fields before the dash"),
        pytest.param("8:1", "", id="not mounted under this number, as with btrfs"),
    ],
)
def test_the_device_of_a_file_system(number: str, device: str) -> None:
    assert mounted_device(parse(MOUNTS.encode().split(b"\n")), number) == device


def test_the_sizes_of_huge_pages_that_there_are_now(tmp_path: Path) -> None:
    for kilobytes, count in ((2048, 5), (1048576, 1), (64, 0)):
        folder = tmp_path / f"hugepages-{kilobytes}kB"
        folder.mkdir()
        (folder / "nr_hugepages").write_text(f"{count}\n")
    assert huge_page_sizes(tmp_path) == ("1GB", "2MB")
    (tmp_path / "hugepages-1048576kB" / "nr_hugepages").write_text("0\n")
    assert huge_page_sizes(tmp_path) == ("2MB",)


def test_a_node_without_huge_pages(tmp_path: Path) -> None:
    assert huge_page_sizes(tmp_path / "none") == ()
