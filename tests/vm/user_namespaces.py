"""The steps of docs/user-namespaces.md in a guest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, Final

from tests.vm import daemon
from tests.vm.guest import Guest

RUNTIME: Final = "dockershim-runc"
_PROGRAM: Final = f"/usr/local/bin/{RUNTIME}"
_DROP_IN: Final = "/etc/dockershim/config.toml.d/user-namespaces.toml"
_SECONDS: Final = 300


@contextmanager
def registered(guest: Guest, others: Mapping[str, Any] = MappingProxyType({})) -> Iterator[None]:
    """Engine and server have the runtime for the length of a block, and the engine has the ``others``."""
    folder = f"/opt/dockershim/lib/python3.*/site-packages/dockershim/runc/{RUNTIME}"
    guest.sh(f"install -m 755 {folder}-$(dpkg --print-architecture) {_PROGRAM}")
    with daemon.changed(guest, {"runtimes": {**others, RUNTIME: {"path": _PROGRAM}}}):
        guest.sh(f"mkdir -p $(dirname {_DROP_IN}) && echo 'oci_runtime = \"{RUNTIME}\"' >{_DROP_IN}")
        guest.run("systemctl", "restart", "dockershim", timeout=_SECONDS)
        try:
            yield
        finally:
            guest.sh(f"rm {_DROP_IN}; systemctl restart dockershim", timeout=_SECONDS)
