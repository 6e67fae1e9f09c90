"""`python -m tests.tarball.foreign`: unpack arm64's tarball and single file on an emulated machine, and import them.

qemu runs one program of the other architecture, so neither can start the environment that it has made: this does.
"""

from __future__ import annotations

import argparse
import platform
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from deploy.tarball.__main__ import file_name
from deploy.targets import TARGETS, of_kind, own_suite
from dockershim import __version__
from dockershim.server import cri_dockerd
from tests.deb import debian
from tests.deb.foreign import ARCHITECTURE, IMPORT_ALL, MACHINE
from tests.node.cache import REPOSITORY
from tests.node.packages import SetupError, executable, install, run

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
    if platform.machine() == MACHINE:
        sys.exit("this machine is an arm64: make test-tarball")
    dist = REPOSITORY / "dist"
    python = f"/usr/bin/python{TARGETS[given.suite].python}"
    try:
        install(("qemu-user-static",))
        clean = debian.provide_foreign(given.suite, ARCHITECTURE)
        with TemporaryDirectory() as folder:
            root = Path(folder, "root")
            run("cp", "-a", clean, root)
            if not (root / "lib").exists():
                (root / "lib").symlink_to("usr/lib")  # base-files would, if it were configured
            run("cp", executable(f"qemu-{MACHINE}-static"), root / "emulator")
            (root / "tarball").mkdir()
            run("tar", "-C", root / "tarball", "--strip-components=1", "-xzf", dist / file_name(ARCHITECTURE))
            run("cp", dist / ARCHITECTURE / cri_dockerd.NAME, root)
            emulated = ("chroot", root, "/emulator")
            installed = run(*emulated, python, "-I", "-S", "-c", MAKE).strip()
            # Its end is that it cannot become the server.
            subprocess.run([*emulated, python, "-I", "-S", f"/{cri_dockerd.NAME}", "--help"], capture_output=True)
            (single,) = (root / "var/lib/dockershim/program").glob("[0-9]*-*")
            answers = [
                run(*emulated, f"{place}/bin/python", "-P", *words)
                for place in (installed, f"/{single.relative_to(root)}")
                for words in (
                    (f"{place}/bin/dockershim", "--version"),
                    (f"{place}/bin/cri-dockerd", "--version"),
                    ("-c", IMPORT_ALL),
                )
            ]
    except SetupError as error:
        sys.exit(f"make test-tarball: {error}")
    version = cri_dockerd.command(["--version"])
    wanted = [f"dockershim {__version__}\n", version, f"{MACHINE}\n"] * 2
    failed = [
        f"expected {want!r}, got {answer!r}" for want, answer in zip(wanted, answers, strict=True) if want != answer
    ]
    sys.stdout.write("".join(f"{line}\n" for line in failed))
    sys.stdout.write(f"{len(wanted) - len(failed)} passed, {len(failed)} failed\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
