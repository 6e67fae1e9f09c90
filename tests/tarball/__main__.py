"""`python -m tests.tarball [--suite SUITE] [--engine ENGINE]`: try what is in dist on a clean Debian in a test node."""

from __future__ import annotations

import argparse
import os
import sys

from deploy.tarball.__main__ import file_name
from deploy.targets import of_kind, own_architecture, own_suite
from dockershim.server import cri_dockerd
from tests.deb import debian
from tests.node.cache import REPOSITORY, entry
from tests.node.packages import SetupError, Suite, install

#: Packages of Debian, for the init script. Since trixie a library has the size of its time in its name.
OPENRC = {"bookworm": ("openrc", "libeinfo1", "librc1"), "trixie": ("openrc", "libeinfo1", "librc1t64")}


def main() -> int:
    """Make the clean Debian outside of the node, which has no way out, and run the tests inside."""
    parser = argparse.ArgumentParser(prog="python -m tests.tarball", description=__doc__)
    parser.add_argument("--suite", choices=of_kind("deb"), default=own_suite())
    parser.add_argument("--engine", default="28")
    parser.add_argument("--focus", default="", help="run only tests of that name")
    given = parser.parse_args()
    tarball = REPOSITORY / "dist" / file_name(own_architecture())
    single_file = REPOSITORY / "dist" / own_architecture() / cri_dockerd.NAME
    for file in (tarball, single_file):
        if not file.exists():
            sys.exit(f"make test-tarball: {file} is missing: make tarball single-file builds it")
    try:
        install(("shellcheck",))
        packages = OPENRC[given.suite]
        openrc = Suite(given.suite).unpack(packages, entry(f"openrc-{given.suite}", " ".join(packages)))
        folders = {"TEST_DEB_ROOT": debian.provide(given.suite), "TEST_OPENRC": openrc}
    except SetupError as error:
        sys.exit(f"make test-tarball: {error}")
    folders |= {"TEST_TARBALL": tarball, "TEST_SINGLE_FILE": single_file}
    node = (sys.executable, "-m", "tests.node", "--engine", given.engine, "--")
    tests = (sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-k", given.focus, "tests/tarball")
    os.execve(sys.executable, (*node, *tests), os.environ | {name: str(path) for name, path in folders.items()})


if __name__ == "__main__":
    main()
