"""A network interface for a kubelet in a test node, which has none but its loopback."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from pyroute2 import IPRoute

ADDRESS: Final = "10.99.0.1"
_ROUTER: Final = "10.99.0.254"
_NAME: Final = "node0"


@contextmanager
def interface() -> Iterator[None]:
    """An interface with ADDRESS: a kubelet takes no loopback address for its node's, and wants a default route."""
    with IPRoute() as route:
        route.link("add", ifname=_NAME, kind="bridge")
    try:
        with IPRoute() as route:
            index = route.link_lookup(ifname=_NAME)[0]
            route.addr("add", index=index, address=ADDRESS, prefixlen=24)
            route.link("set", index=index, state="up")
            route.route("add", dst="0.0.0.0/0", gateway=_ROUTER)
        yield
    finally:
        with IPRoute() as route:
            for index in route.link_lookup(ifname=_NAME):
                route.link("del", index=index)
