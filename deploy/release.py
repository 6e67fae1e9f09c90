"""`python -m deploy.release`: say what keeps this checkout from being a release. `make release-check` runs it.

It looks at what people forget: versions, the changelog, the locks, and what the wheel says of itself. The builds of
wheel, packages, tarballs, single files and bill of materials stay in dist.
"""

from __future__ import annotations

import email
import re
import sys
import tomllib
import zipfile
from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path

from deploy.build import build_all, build_bundles
from deploy.targets import ROOT, TARGETS
from deploy.tree import BuildError, run, sbom
from dockershim import __version__

DIST = ROOT / "dist"
#: What an index shows, and what installers act on.
METADATA = ("Summary", "License-Expression", "License-File", "Requires-Python", "Classifier", "Author", "Description")


def main() -> int:
    """Print every problem; exit with 1 if there is one."""
    problems = [*checkout_problems(), *_wheel_problems(), *_package_problems()]
    for problem in problems:
        sys.stderr.write(f"make release-check: {problem}\n")
    if not problems:
        sys.stdout.write(f"{__version__} can be released; its files are in dist.\n")
    return 1 if problems else 0


def checkout_problems() -> Iterator[str]:
    """What the sources lack."""
    yield from changelog_problems((ROOT / "CHANGELOG.md").read_text(), __version__)
    yield from _git_problems()


def changelog_problems(text: str, version: str) -> Iterator[str]:
    """What the changelog's first section lacks for this version: its name, its day, and something under it."""
    sections = re.findall(r"^## (\S+)(?: - (\S+))?\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    if not sections or sections[0][0] != version:
        yield f"CHANGELOG.md: its first section is not that of {version}, which dockershim/__init__.py has"
        return
    _, day, content = sections[0]
    if not re.fullmatch(r"\d{4}-\d\d-\d\d", day):
        yield f"CHANGELOG.md: {version} is {day or 'without a day'}: write the day of the release"
    if not re.search(r"^\* ", content, re.MULTILINE):
        yield f"CHANGELOG.md: the section of {version} is empty"


def _git_problems() -> Iterator[str]:
    if run("git", "status", "--porcelain", cwd=ROOT).strip():
        yield "git: there are changes without a commit"
    tags = run("git", "tag", "--points-at", "HEAD", cwd=ROOT).split()
    if tags and f"v{__version__}" not in tags:
        yield f"git: HEAD has the tag {' '.join(tags)}, but its version is {__version__}"


def build_wheel(folder: Path) -> Path:
    """Build and check the wheel in ``folder``, with the bill of materials, and return its path."""
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder), cwd=ROOT)
    wheel = folder / f"dockershim-{__version__}-py3-none-any.whl"
    run(sys.executable, "-m", "twine", "check", "--strict", str(wheel))
    sbom(folder / f"dockershim-{__version__}.cdx.json")
    return wheel


def _wheel_problems() -> Iterator[str]:
    try:
        wheel = build_wheel(DIST)
    except BuildError as error:
        yield str(error)
        return
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = email.message_from_bytes(archive.read(name))
        fields = {field: metadata.get(field) for field in METADATA} | {"Description": metadata.get_payload()}
        yield from metadata_problems(fields)
        if metadata["Version"] != __version__:
            yield f"wheel: its version is {metadata['Version']}, that of the sources is {__version__}"
        if len(metadata.get_all("Requires-Dist", [])) < len(project["dependencies"]):
            yield "wheel: it lacks dependencies of pyproject.toml"
        if not any(name.endswith("api_pb2.py") for name in archive.namelist()):
            yield "wheel: it lacks the generated modules"


def metadata_problems(fields: Mapping[str, object]) -> Iterator[str]:
    """The fields of METADATA without a value."""
    for field in METADATA:
        if not fields.get(field):
            yield f"wheel: its metadata has no {field}"


def _package_problems() -> Iterator[str]:
    try:
        list(chain(build_all(TARGETS, "1", DIST), build_bundles(DIST)))
    except BuildError as error:
        yield str(error)


if __name__ == "__main__":
    sys.exit(main())
