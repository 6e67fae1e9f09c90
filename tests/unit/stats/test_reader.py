"""What the reader finds out of a node's own files."""

from __future__ import annotations

import pytest

from dockershim.stats.reader import mounted_device

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
    assert mounted_device(MOUNTS, number) == device
