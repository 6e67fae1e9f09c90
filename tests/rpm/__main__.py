"""`python -m tests.rpm [--target fc43] [--engine ENGINE]`: try the packages in dist on a Debian in a test node.

Debian has the Python of some targets, at the same path. A stand-in tells rpm that what the packages need is there.
"""

from __future__ import annotations

import argparse
import os
import sys

from deploy.rpm.__main__ import file_names
from deploy.targets import TARGETS, Target, of_kind, own_architecture
from tests.deb import debian
from tests.node.cache import REPOSITORY
from tests.node.packages import SetupError, install

#: Where `make test-rpm` has built packages that sort before those in dist.
OLD, OLD_REVISION = REPOSITORY / "build/rpm/old", "0"
TOOLS = ("rpm", "dnf", "cpio", "checkpolicy", "semodule-utils", "selinux-utils")


def suite_of(target: Target) -> str | None:
    """The Debian that has the Python of ``target`` as its own, if there is one."""
    found = (one.name for one in of_kind("deb").values() if one.installed_by and one.python == target.python)
    return next(found, None)


def main() -> None:
    """Make the clean Debian outside of the node, which has no way out, and run the tests inside."""
    parser = argparse.ArgumentParser(prog="python -m tests.rpm", description=__doc__)
    parser.add_argument(
        "--target", choices=[name for name, one in of_kind("rpm").items() if suite_of(one)], required=True
    )
    parser.add_argument("--engine", default="28")
    parser.add_argument("--focus", default="", help="run only tests of that name")
    given = parser.parse_args()
    target = TARGETS[given.target]
    new = [REPOSITORY / "dist" / name for name in file_names(target, own_architecture())]
    old = [OLD / name for name in file_names(target, own_architecture(), OLD_REVISION)]
    if missing := [file for file in (*new, *old) if not file.exists()]:
        sys.exit(f"make test-rpm: {missing[0]} is missing: make test-rpm builds it")
    try:
        install(TOOLS)
        root = debian.provide(suite_of(target) or "")
    except SetupError as error:
        sys.exit(f"make test-rpm: {error}")
    node = (sys.executable, "-m", "tests.node", "--engine", given.engine, "--")
    tests = (sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-k", given.focus, "tests/rpm")
    given_to_tests = {
        "TEST_DEB_ROOT": str(root),
        "TEST_RPM_NEW": os.pathsep.join(map(str, new)),
        "TEST_RPM_OLD": os.pathsep.join(map(str, old)),
        "TEST_RPM_PYTHON": target.python,
        "TEST_RPM_GLIBC": target.glibc,
    }
    os.execve(sys.executable, (*node, *tests), os.environ | given_to_tests)


if __name__ == "__main__":
    main()
