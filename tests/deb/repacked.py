"""The package with another version, as the one before it or after it."""

from __future__ import annotations

import re
from pathlib import Path

from tests.node.packages import run


def repacked(package: Path, version: str, folder: Path) -> Path:
    """Make the same package with this version in ``folder``, which is empty, and return its path."""
    tree = folder / "tree"
    run("dpkg-deb", "-R", package, tree)
    control = tree / "DEBIAN/control"
    text = control.read_text()
    (before,) = re.findall(r"^Version: (.+)$", text, re.MULTILINE)
    # Also where a package depends on another one of the same version.
    control.write_text(re.sub(rf"(?<=[ ]){re.escape(before)}(?=[,)\n])", version, text))
    made = folder / f"{package.name.split('_')[0]}_{version}.deb"
    run("dpkg-deb", "-Znone", "--root-owner-group", "-b", tree, made)
    return made
