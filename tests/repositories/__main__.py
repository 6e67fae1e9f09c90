"""`python -m tests.repositories`: make a release of a few targets with keys of its own, and use it in a test node."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from deploy.release import DIST
from deploy.targets import TARGETS, own_suite
from dockershim import __version__
from tests.deb import debian
from tests.node.cache import REPOSITORY
from tests.node.packages import SetupError, install, run

TOOLS = ("apt-utils", "createrepo-c", "dnf", "gpg", "minisign", "rpm")
RPM = "fc43"


def main() -> int:
    """Make keys, release and a clean Debian outside of the node, which has no way out, and run the tests inside."""
    parser = argparse.ArgumentParser(prog="python -m tests.repositories", description=__doc__)
    parser.add_argument("--builder", type=Path, required=True, help="the Python that builds packages")
    parser.add_argument("--focus", default="", help="run only tests of that name")
    given = parser.parse_args()
    suite = own_suite()
    with TemporaryDirectory() as keys:
        environment = os.environ | {"GNUPGHOME": keys}
        try:
            install(TOOLS)
            root = debian.provide(suite)
            key = ("--passphrase", "", "--quick-generate-key", "dockershim test", "ed25519", "sign", "never")
            run("gpg", "--batch", *key, env=environment)
            run("minisign", "-G", "-W", "-p", f"{keys}/minisign.pub", "-s", f"{keys}/minisign.key")
        except SetupError as error:
            sys.exit(f"make test-repositories: {error}")
        publish = (given.builder, "-m", "deploy.publish", "--draft", "--gpg-key=dockershim test")
        subprocess.run((*publish, f"--minisign-key={keys}/minisign.key", suite, RPM), env=environment, check=True)
        subprocess.run(("gpgconf", "--kill", "gpg-agent"), env=environment, check=True)
        node = (sys.executable, "-m", "tests.node", "--engine", "28", "--")
        tests = (sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-k", given.focus, "tests/repositories")
        given_to_tests = {
            "TEST_DEB_ROOT": str(root),
            "TEST_RELEASE": str(DIST / f"release-{__version__}"),
            "TEST_SUITE": suite,
            "TEST_RPM_REPOSITORY": RPM,
            "TEST_RPM_PYTHON": TARGETS[RPM].python,
            "TEST_RPM_GLIBC": TARGETS[RPM].glibc,
            "TEST_MINISIGN": f"{keys}/minisign.pub",
        }
        return subprocess.run((*node, *tests), env=os.environ | given_to_tests, cwd=REPOSITORY).returncode


if __name__ == "__main__":
    sys.exit(main())
