"""critest in a guest, against the server as a package's user has it: with systemd, cgroup v2 and AppArmor."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.conformance.inside import JUNIT
from tests.node.packages import SetupError
from tests.vm import user_namespaces
from tests.vm.guest import GuestError
from tests.vm.image import provided
from tests.vm.machines import MACHINES
from tests.vm.running import running

_LOG: Final = "critest.log"
#: Seconds. A guest has one processor, and without KVM another kind of guest takes ten times as long.
_TIME_LIMIT: Final = 4 * 3600


def run(machine: str, engine: str, flags: Sequence[str], report: Path) -> int:
    """Run critest with these flags in a guest, and put its reports into a folder. Gives its exit code; SetupError."""
    options = ["--ginkgo.seed=1", "--ginkgo.no-color", "--ginkgo.v", f"--ginkgo.junit-report=/tmp/{JUNIT}", *flags]
    command = shlex.join(["critest", "--runtime-endpoint=unix:///run/dockershim.sock", *options])
    try:
        with running(MACHINES[machine], provided(engine=engine)) as guest, user_namespaces.registered(guest):
            code = guest.ended(f"{command} >/tmp/{_LOG} 2>&1", timeout=_TIME_LIMIT).code
            for name in (_LOG, JUNIT):
                with contextlib.suppress(GuestError):
                    (report / name).write_text(guest.read(f"/tmp/{name}"))
            (report / "dockershim.server.log").write_text(guest.journal("dockershim"))
            return code
    except GuestError as error:
        raise SetupError(str(error)) from error
