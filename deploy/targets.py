"""The distributions that packages are built for: a row for each, which the builders, the documents and the tests read.

``python -m deploy.targets`` writes the rows into docs/install.md; ``make tables`` does that too.
"""

from __future__ import annotations

import platform
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DOCUMENT = ROOT / "docs/install.md"
BEGIN, END = "<!-- targets: make tables -->\n", "<!-- /targets -->\n"
#: Debian's names of architectures, and those of wheels and rpm.
ARCHITECTURES = {"amd64": "x86_64", "arm64": "aarch64"}


@dataclass(frozen=True, slots=True)
class Target:
    """One distribution.

    ``name`` is what `make` takes, and for apt the suite. ``release`` is the end of its packages' versions. ``python``
    is the minor version that its packages need, ``glibc`` the version that it has. ``installed_by`` is the command that
    installs its packages for amd64 here, or empty.
    """

    name: str
    title: str
    kind: str
    release: str
    python: str
    glibc: str
    installed_by: str = ""


TARGETS = {
    target.name: target
    for target in (
        Target("bookworm", "Debian 12", "deb", "~deb12", "3.11", "2.36", "make test-deb SUITE=bookworm"),
        Target("trixie", "Debian 13", "deb", "~deb13", "3.13", "2.41", "make test-deb SUITE=trixie"),
        Target("forky", "Debian 14 (testing)", "deb", "~deb14", "3.14", "2.43", "make test-deb SUITE=forky"),
        Target("noble", "Ubuntu 24.04", "deb", "~ubuntu24.04", "3.12", "2.39"),
        Target("resolute", "Ubuntu 26.04", "deb", "~ubuntu26.04", "3.14", "2.43"),
        Target("el9", "RHEL 9 and its kin", "rpm", ".el9", "3.12", "2.34"),
        Target("el10", "RHEL 10 and its kin", "rpm", ".el10", "3.12", "2.39"),
        Target("fc42", "Fedora 42", "rpm", ".fc42", "3.13", "2.41", "make test-rpm TARGET=fc42"),
        Target("fc43", "Fedora 43", "rpm", ".fc43", "3.14", "2.42", "make test-rpm TARGET=fc43"),
    )
}


def of_kind(kind: str) -> dict[str, Target]:
    """The targets whose packages are of a kind, "deb" or "rpm", by name."""
    return {name: target for name, target in TARGETS.items() if target.kind == kind}


def own_suite() -> str:
    """The Debian or Ubuntu release of this machine, or the oldest one."""
    suites = of_kind("deb")
    codename = platform.freedesktop_os_release().get("VERSION_CODENAME", "")
    return codename if codename in suites else next(iter(suites))


def own_architecture() -> str:
    """Debian's name of this machine's architecture."""
    return next(name for name, machine in ARCHITECTURES.items() if machine == platform.machine())


def matrix() -> str:
    """The table of docs/install.md."""
    rows = [
        "| For | Command | Python | glibc | Seen |",
        "|---|---|---|---|---|",
        *(
            f"| {one.title} | `make {one.kind} {'SUITE' if one.kind == 'deb' else 'TARGET'}={one.name}` "
            f"| {one.python} | {one.glibc} | {_seen(one)} |"
            for one in TARGETS.values()
        ),
    ]
    return "\n".join(rows) + "\n"


def _seen(target: Target) -> str:
    if not target.installed_by:
        return "not installed"
    where = "installed" if target.kind == "deb" else "installed on a Debian with this Python"
    return f"{where} by `{target.installed_by}`"


def with_matrix(text: str) -> str:
    """The document with the table between its marks. Raises ValueError if it does not have both marks once."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{DOCUMENT.name}: the marks {BEGIN.strip()} and {END.strip()} must be there")
    return f"{before}{BEGIN}\n{matrix()}\n{END}{after}"


def main() -> int:
    """Write the table into the document."""
    DOCUMENT.write_text(with_matrix(DOCUMENT.read_text()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
