"""`python -m tests.deb.foreign`: start the command of the arm64 package, and import all of it, on an emulated machine.

It shows that the wheels fit Python and machine.
"""

from __future__ import annotations

import argparse
import subprocess
import sys

from deploy.deb.__main__ import file_name
from deploy.targets import TARGETS, of_kind, own_suite
from dockershim import __version__
from tests.deb.emulated import ARCHITECTURE, IMPORT_ALL, MACHINE, emulated, judge
from tests.node.cache import REPOSITORY
from tests.node.packages import run


def main() -> int:
    """Try the package in dist; a failure is an exception."""
    parser = argparse.ArgumentParser(prog="python -m tests.deb.foreign", description=__doc__)
    parser.add_argument("--suite", choices=of_kind("deb"), default=own_suite())
    given = parser.parse_args()
    with emulated(given.suite, "make test-deb") as (root, enter):
        run("dpkg-deb", "-x", REPOSITORY / "dist" / file_name(TARGETS[given.suite], ARCHITECTURE), root)
        python = (*enter, "/usr/lib/dockershim/bin/python", "-P")
        answers = [
            run(*python, "-m", "dockershim", "--version"),
            run(*python, "-m", "dockershim", "config", "default"),
            run(*python, "-c", IMPORT_ALL),
        ]
    own = subprocess.run([sys.executable, "-m", "dockershim", "config", "default"], capture_output=True, text=True)
    return judge(answers, [f"dockershim {__version__}\n", own.stdout, f"{MACHINE}\n"])


if __name__ == "__main__":
    sys.exit(main())
