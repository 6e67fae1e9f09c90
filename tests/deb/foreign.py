"""`python -m tests.deb.foreign`: start the command of the arm64 package, and import all of it, on an emulated machine.

qemu runs one program of the other architecture, so there are no pods: it shows that the wheels fit Python and machine.
"""

from __future__ import annotations

import argparse
import platform
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from deploy.deb.__main__ import file_name
from deploy.targets import TARGETS, of_kind, own_suite
from dockershim import __version__
from tests.deb import debian
from tests.node.cache import REPOSITORY
from tests.node.packages import SetupError, executable, install, run

ARCHITECTURE, MACHINE = "arm64", "aarch64"
IMPORT_ALL = """\
import importlib, pkgutil, platform
for top in ("dockershim", "background", "cni", "checkpoints", "loopio", "streaming"):
    for found in pkgutil.walk_packages(importlib.import_module(top).__path__, f"{top}."):
        if not found.name.endswith("__main__"):
            importlib.import_module(found.name)
print(platform.machine())
"""


def main() -> int:
    """Try the package in dist; a failure is an exception."""
    parser = argparse.ArgumentParser(prog="python -m tests.deb.foreign", description=__doc__)
    parser.add_argument("--suite", choices=of_kind("deb"), default=own_suite())
    given = parser.parse_args()
    if platform.machine() == MACHINE:
        sys.exit("this machine is an arm64: make test-deb")
    try:
        install(("qemu-user-static",))
        clean = debian.provide_foreign(given.suite, ARCHITECTURE)
        with TemporaryDirectory() as folder:
            root = Path(folder, "root")
            run("cp", "-a", clean, root)
            if not (root / "lib").exists():
                (root / "lib").symlink_to("usr/lib")  # base-files would, if it were configured
            run("cp", executable(f"qemu-{MACHINE}-static"), root / "emulator")
            run("dpkg-deb", "-x", REPOSITORY / "dist" / file_name(TARGETS[given.suite], ARCHITECTURE), root)
            python = ("chroot", root, "/emulator", "/usr/lib/dockershim/bin/python", "-P")
            answers = [
                run(*python, "-m", "dockershim", "--version"),
                run(*python, "-m", "dockershim", "config", "default"),
                run(*python, "-c", IMPORT_ALL),
            ]
    except SetupError as error:
        sys.exit(f"make test-deb: {error}")
    own = subprocess.run([sys.executable, "-m", "dockershim", "config", "default"], capture_output=True, text=True)
    wanted = [f"dockershim {__version__}\n", own.stdout, f"{MACHINE}\n"]
    failed = [
        f"expected {want!r}, got {answer!r}" for want, answer in zip(wanted, answers, strict=True) if want != answer
    ]
    sys.stdout.write("".join(f"{line}\n" for line in failed))
    sys.stdout.write(f"{len(wanted) - len(failed)} passed, {len(failed)} failed\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
