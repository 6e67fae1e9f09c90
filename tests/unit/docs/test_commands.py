"""The commands of pages that no test follows line by line: each is tried by the test named here, or says why not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PROGRAMS = ("apt-get", "crictl", "docker", "dockershim", "keadm", "kubeadm", "make", "mkdir", "systemctl")
CLUSTER = "needs a cloud side of KubeEdge, which is not to be had in a test node"
SYSTEMD = "tests/vm/test_units.py"
TRIED = {
    "air-gapped.md": {
        "mkdir -p /tmp/packages/partial": "not tried: needs a second machine",
        "apt-get install --download-only": "not tried: needs a second machine",
        "apt-get install /tmp/packages": "tests/deb/test_install.py",
        "docker save": "tests/engine/test_air_gapped.py",
        "docker load": "tests/engine/test_air_gapped.py",
        "kubeadm config images list": "tests/kubeadm",
        "kubeadm init": "tests/kubeadm",
    },
    "kubeedge.md": {"keadm join": f"not tried: {CLUSTER}"},
    "koordinator.md": {},
    "security.md": {},
    "tracing.md": {
        "systemctl edit dockershim": "not tried: it opens an editor; tests/engine/test_tracing.py sets what it would",
        "systemctl restart dockershim": SYSTEMD,
    },
}


@pytest.mark.parametrize("page", TRIED)
def test_each_command_is_tried_or_says_why_not(page: str) -> None:
    blocks = re.findall(r"(?:^    .*\n)+", (ROOT / "docs" / page).read_text(), re.MULTILINE)
    lines = [line.strip() for block in blocks for line in block.splitlines()]
    commands = [line for line in lines if line.split()[0] in PROGRAMS]
    tried = TRIED[page]
    assert [line for line in commands if not line.startswith(tuple(tried))] == []
    assert [begin for begin in tried if not any(line.startswith(begin) for line in commands)] == []
    places = [where for where in tried.values() if not where.startswith("not tried: ")]
    assert [where for where in places if not (ROOT / where).exists()] == []
