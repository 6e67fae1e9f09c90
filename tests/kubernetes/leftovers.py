"""What a cluster leaves on its node."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager

import docker

from tests.node.state import capture


@contextmanager
def nothing_left() -> Iterator[None]:
    """The containers, networks, rules and files that are there at the end were there at the start.

    Chains of kubelet and kube-proxy stay as long as the machine; `kubeadm reset` says so too.
    """
    with closing(docker.from_env()) as api:
        before = capture(api)
        yield
        gained = capture(api).gained(before)
    left = [line for lines in gained.values() for line in lines if "KUBE-" not in line]
    assert left == [], "the tests left these behind"
