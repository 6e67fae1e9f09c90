"""`python -m tests.tarball.foreign`: unpack arm64's tarball and single file on an emulated machine, and import them.

qemu runs one program of the other architecture, so neither can start the environment that it has made: this does.
"""

from __future__ import annotations

import argparse
import subprocess
import sys

from deploy.tarball.__main__ import file_name
from deploy.targets import TARGETS, of_kind, own_suite
from dockershim import __version__
from dockershim.server import cri_dockerd
from tests.deb.emulated import ARCHITECTURE, IMPORT_ALL, MACHINE, emulated, judge
from tests.node.cache import REPOSITORY
from tests.node.packages import run

#: As the installer does, but for the check, which starts the environment.
MAKE = """\
import sys
sys.path.insert(0, "/tarball/installer")
from pathlib import Path
from deploy.tarball.environment import Bundle, provide
bundle = Bundle.of(lambda path: Path("/tarball", path).read_bytes())
print(provide(bundle, Path("/tarball"), lambda folder: "" if (folder / "bin/python").is_symlink() else "is not there"))
"""


def main() -> int:
    """Try what is in dist; a failure is an exception."""
    parser = argparse.ArgumentParser(prog="python -m tests.tarball.foreign", description=__doc__)
    parser.add_argument("--suite", choices=of_kind("deb"), default=own_suite())
    given = parser.parse_args()
    dist = REPOSITORY / "dist"
    python = f"/usr/bin/python{TARGETS[given.suite].python}"
    with emulated(given.suite, "make test-tarball") as (root, enter):
        (root / "tarball").mkdir()
        run("tar", "-C", root / "tarball", "--strip-components=1", "-xzf", dist / file_name(ARCHITECTURE))
        run("cp", dist / ARCHITECTURE / cri_dockerd.NAME, root)
        installed = run(*enter, python, "-I", "-S", "-c", MAKE).strip()
        # Its end is that it cannot become the server.
        subprocess.run([*enter, python, "-I", "-S", f"/{cri_dockerd.NAME}", "--help"], capture_output=True)
        (single,) = (root / "var/lib/dockershim/program").glob("[0-9]*-*")
        answers = [
            run(*enter, f"{place}/bin/python", "-P", *words)
            for place in (installed, f"/{single.relative_to(root)}")
            for words in (
                (f"{place}/bin/dockershim", "--version"),
                (f"{place}/bin/cri-dockerd", "--version"),
                ("-c", IMPORT_ALL),
            )
        ]
    version = str(cri_dockerd.command(["--version"]))
    return judge(answers, [f"dockershim {__version__}\n", version, f"{MACHINE}\n"] * 2)


if __name__ == "__main__":
    sys.exit(main())
