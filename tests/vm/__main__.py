"""`python -m tests.vm [--guest uml|qemu] [--engine 29|28] [-- command…]`: boot a guest, run a command in it as root."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence

from tests.node.packages import SetupError
from tests.vm.guest import GuestError
from tests.vm.image import ENGINES, provided
from tests.vm.machines import MACHINES, UML
from tests.vm.running import running


def main(arguments: Sequence[str]) -> int:
    """0 when the command ended well; SystemExit says why there is no guest, or what the command wrote."""
    parser = argparse.ArgumentParser(prog="python -m tests.vm", description=__doc__)
    parser.add_argument("--guest", choices=sorted(MACHINES), default=UML.name, help="what runs it")
    parser.add_argument("--engine", choices=ENGINES, default=ENGINES[0], help="version of its Docker Engine")
    parser.add_argument("command", nargs="*", help="what to run in the guest; a shell if left out")
    given = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # then the guest is switched off, too
    try:
        with running(MACHINES[given.guest], provided(engine=given.engine)) as guest:
            if not given.command:
                return guest.shell()
            sys.stdout.write(guest.run(*given.command, timeout=3600))
            return 0
    except (SetupError, GuestError) as error:
        sys.exit(f"vm: {error}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
