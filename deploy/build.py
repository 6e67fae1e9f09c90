"""`python -m deploy.build [TARGET...]`: build the packages of each target for each architecture, and check them.

Without targets it builds all, and the tarball and the single file of each architecture. `make packages` runs it.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import sys
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path

from deploy import tree
from deploy.deb.__main__ import build as build_deb
from deploy.rpm.__main__ import build as build_rpm
from deploy.single_file.__main__ import build as build_single_file
from deploy.tarball.__main__ import build as build_tarball
from deploy.targets import ARCHITECTURES, ROOT, TARGETS

BUILDERS = {"deb": build_deb, "rpm": build_rpm}
#: What says of a package of a kind whether it follows the rules of its distributions.
LINTERS = {
    "deb": ("lintian", "--fail-on=error,warning", "--allow-root"),
    "rpm": ("rpmlint", "--strict", f"--config={ROOT / 'deploy/rpm/rpmlint.toml'}"),
}


def main() -> int:
    """Build all packages, and print their paths."""
    parser = argparse.ArgumentParser(prog="python -m deploy.build", description=__doc__)
    parser.add_argument("targets", nargs="*", help=f"of {', '.join(TARGETS)}; all if left out")
    parser.add_argument("--revision", default="1", help="counts packages of one version")
    parser.add_argument("--output", type=Path, default=ROOT / "dist")
    given = parser.parse_args()
    if unknown := [name for name in given.targets if name not in TARGETS]:
        parser.error(f"unknown target {unknown[0]!r}: must be one of {', '.join(TARGETS)}")
    try:
        bundles = iter(()) if given.targets else build_bundles(given.output)
        for package in chain(build_all(given.targets or TARGETS, given.revision, given.output), bundles):
            sys.stdout.write(f"{os.path.relpath(package)}\n")
            sys.stdout.flush()
    except tree.BuildError as error:
        sys.stderr.write(f"make packages: {error}\n")
        return 1
    return 0


def build_all(names: Iterable[str], revision: str, output: Path) -> Iterator[Path]:
    """Build and check the packages of these targets, and give the path of each in ``output`` once.

    Raises BuildError if a package that fits every architecture is not the same from each of them.
    """
    digests: dict[Path, str] = {}
    for target in map(TARGETS.__getitem__, names):
        for architecture in ARCHITECTURES:
            packages = BUILDERS[target.kind](target, architecture, revision, output)
            tree.run(*LINTERS[target.kind], *map(str, packages))
            for package in packages:
                digest = hashlib.sha256(package.read_bytes()).hexdigest()
                if package not in digests:
                    digests[package] = digest
                    yield package
                elif digests[package] != digest:
                    raise tree.BuildError(f"{package.name} is not the same when it is built for {architecture}")


def build_bundles(output: Path) -> Iterator[Path]:
    """Build what is not for one distribution: the tarball and the single file of each architecture."""
    for architecture in ARCHITECTURES:
        yield build_tarball(architecture, output)
        yield from build_single_file(architecture, output)


if __name__ == "__main__":
    sys.exit(main())
