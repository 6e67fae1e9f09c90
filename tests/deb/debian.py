"""A clean Debian as a folder, made by mmdebstrap once for each content of this file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tests.node.cache import appearing, entry, locked, used
from tests.node.packages import Suite, install, run

MACHINE = ("mmdebstrap",)
#: What the package needs, what its files are for (shells, man, systemd), and what the node's CNI plugins call.
PACKAGES = ("python3", "systemd", "man-db", "zsh", "fish", "iptables")
#: What the package needs.
FEW_PACKAGES = ("python3", "libstdc++6", "libgcc-s1")


def provide(suite: str) -> Path:
    """The root folder of the Debian release ``suite``. It is not to be changed: tests work on copies."""
    return _made(suite, suite, ("--variant=minbase", f"--include={','.join(PACKAGES)}"))


def provide_foreign(suite: str, architecture: str) -> Path:
    """The same for another architecture, with few packages. They are only unpacked: nothing of them can run here."""
    options = ("--variant=extract", f"--architectures={architecture}", f"--include={','.join(FEW_PACKAGES)}")
    return _made(f"{suite}-{architecture}", suite, options)


def _made(name: str, suite: str, options: Sequence[str]) -> Path:
    source = Suite(suite).source
    target = entry(f"deb-{name}", Path(__file__).read_bytes())
    with locked("deb"):
        install(MACHINE)
        if not used(target):
            with appearing(target) as made:
                run(
                    "mmdebstrap",
                    "--mode=root",
                    # A mirror may be a snapshot of some day: its signature is checked, its age is not.
                    '--aptopt=Acquire::Check-Valid-Until "false"',
                    '--aptopt=APT::Install-Recommends "false"',
                    *options,
                    suite,
                    made / "root",
                    source,
                )
    return target / "root"
