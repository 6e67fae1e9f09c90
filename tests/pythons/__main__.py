"""`python -m tests.pythons [VERSION|PATH...]`: run the unit tests with other Pythons (by default all of SUITES).

The Python of a version comes from the Debian release that has it, unpacked into the cache, with the wheels for it. The
tests run with its files as their root, in a mount namespace, so the machine stays as it is. A path names an interpreter
of this machine, which gets a virtual environment.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import subprocess
import sys
import tomllib
from pathlib import Path

from tests.node.cache import CACHE, REPOSITORY, appearing, entry, locked, used
from tests.node.packages import SetupError, Suite, run

#: By version, the Debian release that has it. 3.11 is bookworm's, with which `make test-unit` runs. None has 3.12.
SUITES = {"3.13": "trixie", "3.14": "forky"}
#: The Python, and the programs that unit tests start.
PACKAGES = (
    *("python3", "base-files", "base-passwd", "bash", "coreutils", "dash", "grep", "sed", "libstdc++6"),
    *("iproute2", "mount", "openssl", "procps", "util-linux"),
)
#: What does not depend on Python, and needs more programs: compilers, an emulator, make, dpkg.
LEFT_OUT = ("tests/unit/cri/test_infra_image.py", "tests/unit/deploy", "tests/unit/docs", "tests/unit/runc")
#: What names this clone, which the cache does not: paths for Python, virtual environments.
FOLDER = REPOSITORY / "build/pythons"
#: Makes the folder $1 the root, with the folder $2 in the place $3, and with the machine's devices, processes and the
#: folders after it as they are, and runs $0.
ENTER = """\
set -e
root=$1 own=$2 place=$3 repository=$4
mount --make-rprivate /
mount --bind "$root" "$root"
mkdir -p "$place"
mount --bind "$own" "$place"
shift 4
for folder in /proc /dev /sys "$repository" "$@"; do
  mkdir -p "$root$folder"
  mount --rbind "$folder" "$root$folder"
done
mount -t tmpfs tmpfs "$root/tmp"
cd "$root"
pivot_root . .
umount -l .
cd "$repository"
exec $0
"""


def main() -> int:
    """Run the tests with each version, also after one has failed. Returns 1 if one has."""
    parser = argparse.ArgumentParser(prog="python -m tests.pythons", description=__doc__)
    parser.add_argument("versions", nargs="*", metavar="VERSION|PATH")
    wanted = parser.parse_args().versions or list(SUITES)
    if unknown := [one for one in wanted if one not in SUITES and not Path(one).is_file()]:
        parser.error(f"no Debian release has Python {', '.join(unknown)}: {', '.join(SUITES)}")
    failed = []
    for version in wanted:
        try:
            if _test(version) if version in SUITES else _test_here(version):
                failed.append(version)
        except SetupError as error:
            sys.exit(f"make test-pythons: {error}")
    sys.stdout.write(f"failed with Python {', '.join(failed)}\n" if failed else f"passed with {', '.join(wanted)}\n")
    return 1 if failed else 0


def _test(version: str) -> int:
    with locked("pythons"):
        target = entry(f"python-{version}", "\n".join(PACKAGES))
        root = Suite(SUITES[version]).unpack(PACKAGES, target, with_dependencies=True)
        wheels = _wheels(version)
    # Not PYTHONPATH: the server starts its own processes without it.
    paths = FOLDER / version / "tests.pth"
    paths.parent.mkdir(parents=True, exist_ok=True)
    paths.write_text(f"{REPOSITORY}\n{wheels}\n")
    found_in = root / f"usr/local/lib/python{version}/dist-packages"
    tests = f"python{version} -m pytest -q -p no:cacheprovider -n {os.cpu_count()} tests/unit"
    tests += "".join(f" --ignore={path}" for path in LEFT_OUT)
    environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LANG": "C.UTF-8"}
    own = (str(paths.parent), str(found_in))
    command = ("unshare", "--mount", "bash", "-c", ENTER, tests, str(root), *own, str(REPOSITORY), str(CACHE))
    return subprocess.run(command, env=environment).returncode


def _test_here(interpreter: str) -> int:
    environment = FOLDER / f"venv-{hashlib.sha256(interpreter.encode()).hexdigest()[:8]}"
    with locked("pythons"):
        run(interpreter, "-m", "venv", environment)
        run(environment / "bin/python", "-m", "pip", "install", "-q", "-e", f"{REPOSITORY}[dev]")
    tests = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", str(os.cpu_count()), "tests/unit")
    return subprocess.run([environment / "bin/python", *tests], cwd=REPOSITORY).returncode


def _wheels(version: str) -> Path:
    """A folder with what the server and its tests import, for this Python."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *extras["tracing"], *extras["dev"]]
    wanted = [requirement for requirement in wanted if not requirement.startswith("dockershim")]
    target = entry(f"wheels-{version}", "\n".join(wanted))
    if not used(target):
        with appearing(target) as made:
            pip = (sys.executable, "-m", "pip", "install", "-q", "--only-binary=:all:", f"--target={made}")
            machine = (
                f"--platform=manylinux_2_28_{os.uname().machine}",
                f"--platform=manylinux2014_{os.uname().machine}",
            )
            run(*pip, *machine, f"--python-version={version}", *wanted)
    return target


if __name__ == "__main__":
    sys.exit(main())
