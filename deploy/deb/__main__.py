"""`python -m deploy.deb [--target bookworm] [--architecture amd64|arm64]`: build dist/dockershim_….deb.

With it comes dockershim-cri-dockerd, which has the names of cri-dockerd and fits every architecture.

The package has a Python environment with the wheels of deploy/locks/server.txt, so it needs the Python of one release
of a distribution: there is one package for each of deploy/targets.py.
"""

from __future__ import annotations

import os
import shutil
import sys
from datetime import UTC, datetime
from email.utils import format_datetime
from pathlib import Path

from deploy import tree
from deploy.targets import Target, own_suite

DEBIAN = Path(__file__).parent / "debian"
#: Where debhelper looks for the units of deploy/.
UNITS = {
    "dockershim.service": "debian/dockershim.service",
    "dockershim.socket": "debian/dockershim.socket",
    "dockershim.service.d/10-socket.conf": "10-socket.conf",
    "cri-docker.service": "debian/dockershim-cri-dockerd.cri-docker.service",
    "cri-docker.socket": "debian/dockershim-cri-dockerd.cri-docker.socket",
}


def main() -> int:
    """Build the packages that the arguments ask for, and print their paths."""
    return tree.command("deb", __doc__, build, own_suite())


def version_of(upstream: str, revision: str, target: Target) -> str:
    """Debian's version: a newer Debian's package sorts after an older one's."""
    return f"{upstream}-{revision}{target.release}"


def needs(target: Target) -> str:
    """The dependency: extension modules fit one minor version of Python."""
    major, minor = target.python.split(".")
    return f"python3 (>= {target.python}~), python3 (<< {major}.{int(minor) + 1}~)"


def build(target: Target, architecture: str, revision: str, output: Path) -> tuple[Path, Path]:
    """Build both packages in build/deb, reproducibly, and return their paths in ``output``: the server's first."""
    tree.check_revision(revision)
    work, epoch = tree.begin("deb", target, architecture)
    shutil.copytree(DEBIAN, work / "debian")
    tree.write_server(work / "files", target, architecture)
    tree.write_command(work / "drop-in/usr/bin/cri-dockerd", tree.DROP_IN_COMMAND)
    tree.write_texts(work / "files", work / "man")
    tree.write_documents(work)
    (work / "debian/docs").write_text("".join(f"{one}\n" for one in (*tree.DOCUMENTS, tree.BILL)))
    for name, place in UNITS.items():
        (work / place).write_text(tree.unit(name))
    (work / "debian/changelog").write_text(_changelog(version_of(tree.version(), revision, target), target, epoch))
    environment = os.environ | {"PYTHON_DEPENDS": needs(target), "DH_QUIET": "1"}
    # Without a compiler for the other architecture it only warns: nothing is compiled.
    architect = ("dpkg-architecture", "--force", f"--host-arch={architecture}", "--command")
    tree.run(*architect, "debian/rules binary", cwd=work, env=environment)
    output.mkdir(parents=True, exist_ok=True)
    names = (file_name(target, architecture, revision), drop_in_file_name(target, revision))
    server, drop_in = (Path(shutil.copy2(work.parent / name, output / name)) for name in names)
    return server, drop_in


def _changelog(version: str, target: Target, epoch: int) -> str:
    maintainer = next(
        line.partition(": ")[2] for line in (DEBIAN / "control").read_text().splitlines() if "Maintainer: " in line
    )
    date = format_datetime(datetime.fromtimestamp(epoch, UTC))
    return f"""\
dockershim ({version}) {target.name}; urgency=medium

  * See /usr/share/doc/dockershim/changelog.gz.

 -- {maintainer}  {date}
"""


def file_name(target: Target, architecture: str, revision: str = "1") -> str:
    """The name of the file of the server's package."""
    return f"dockershim_{version_of(tree.version(), revision, target)}_{architecture}.deb"


def drop_in_file_name(target: Target, revision: str = "1") -> str:
    """The name of the file of dockershim-cri-dockerd."""
    return f"dockershim-cri-dockerd_{version_of(tree.version(), revision, target)}_all.deb"


if __name__ == "__main__":
    sys.exit(main())
