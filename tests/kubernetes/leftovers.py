"""What a cluster leaves on its node."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager

import docker

from tests.node.state import Snapshot, capture


@contextmanager
def nothing_left() -> Iterator[None]:
    """The containers, networks, rules and files that are there at the end were there at the start."""
    before = snapshot()
    yield
    assert left(before) == [], "the tests left these behind"


def snapshot() -> Snapshot:
    """The state of the node now."""
    with closing(docker.from_env()) as api:
        return capture(api)


def left(before: Snapshot) -> list[str]:
    """What is here and was not there ``before``.

    Chains of kubelet and kube-proxy stay as long as the machine; `kubeadm reset` says so too.
    """
    gained = snapshot().gained(before)
    return [line for lines in gained.values() for line in lines if "KUBE-" not in line]
