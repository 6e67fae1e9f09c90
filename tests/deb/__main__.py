"""`python -m tests.deb [--suite SUITE] [--engine ENGINE]`: try the package in dist on a clean Debian in a test node."""

from __future__ import annotations

import argparse
import os
import sys

from deploy.deb.__main__ import drop_in_file_name, file_name
from deploy.targets import TARGETS, of_kind, own_architecture, own_suite
from tests.deb import debian
from tests.node.cache import REPOSITORY
from tests.node.packages import SetupError


def main() -> int:
    """Make the clean Debian outside of the node, which has no way out, and run the tests inside."""
    parser = argparse.ArgumentParser(prog="python -m tests.deb", description=__doc__)
    parser.add_argument("--suite", choices=of_kind("deb"), default=own_suite())
    parser.add_argument("--engine", default="28")
    parser.add_argument("--focus", default="", help="run only tests of that name")
    given = parser.parse_args()
    package = REPOSITORY / "dist" / file_name(TARGETS[given.suite], own_architecture())
    drop_in = REPOSITORY / "dist" / drop_in_file_name(TARGETS[given.suite])
    for file in (package, drop_in):
        if not file.exists():
            sys.exit(f"make test-deb: {file} is missing: make deb builds it")
    try:
        root = debian.provide(given.suite)
    except SetupError as error:
        sys.exit(f"make test-deb: {error}")
    node = (sys.executable, "-m", "tests.node", "--engine", given.engine, "--")
    tests = (sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-k", given.focus, "tests/deb")
    folders = {"TEST_DEB_ROOT": str(root), "TEST_DEB_PACKAGE": str(package), "TEST_DEB_DROP_IN": str(drop_in)}
    os.execve(sys.executable, (*node, *tests), os.environ | folders)


if __name__ == "__main__":
    main()
