"""The package with another version, as the one before it or after it."""

from __future__ import annotations

from pathlib import Path

from tests.node.packages import run


def repacked(package: Path, version: str, folder: Path) -> Path:
    """Make the same package with this version in ``folder``, which is empty, and return its path."""
    tree = folder / "tree"
    run("dpkg-deb", "-R", package, tree)
    control = tree / "DEBIAN/control"
    lines = control.read_text().split("\n")
    control.write_text("\n".join(f"Version: {version}" if line.startswith("Version: ") else line for line in lines))
    made = folder / f"dockershim_{version}.deb"
    run("dpkg-deb", "-Znone", "--root-owner-group", "-b", tree, made)
    return made
