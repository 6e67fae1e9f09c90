"""The steps of docs/user-namespaces.md in a guest."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Final

from tests.vm.guest import Guest

RUNTIME: Final = "dockershim-runc"
_PROGRAM: Final = f"/usr/local/bin/{RUNTIME}"
_DROP_IN: Final = "/etc/dockershim/config.toml.d/user-namespaces.toml"
_DAEMON: Final = "/etc/docker/daemon.json"
_SECONDS: Final = 300


def set_up(guest: Guest) -> Callable[[], None]:
    """Register the runtime with the engine and the server. Returns what undoes it."""
    before = guest.sh(f"cat {_DAEMON} 2>/dev/null || true")
    runtimes = {"runtimes": {RUNTIME: {"path": _PROGRAM}}}
    guest.sh(f"cat >{_DAEMON}", input=json.dumps((json.loads(before) if before else {}) | runtimes))
    folder = f"/opt/dockershim/lib/python3.*/site-packages/dockershim/runc/{RUNTIME}"
    guest.sh(f"install -m 755 {folder}-$(dpkg --print-architecture) {_PROGRAM}")
    guest.sh(f"mkdir -p $(dirname {_DROP_IN}) && echo 'oci_runtime = \"{RUNTIME}\"' >{_DROP_IN}")
    guest.sh("systemctl reload docker && systemctl restart dockershim", timeout=_SECONDS)

    def undo() -> None:
        guest.sh(f"cat >{_DAEMON}" if before else f"rm {_DAEMON}", input=before)
        guest.sh(f"rm {_DROP_IN}; systemctl reload docker && systemctl restart dockershim", timeout=_SECONDS)

    return undo
