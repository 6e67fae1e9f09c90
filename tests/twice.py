"""`python -m tests.twice [TARGET...]`: build the packages of the last commit again, and compare them with dist.

The second build is made from a fresh clone in another folder, with another umask, time zone, language and order of
hashes. `make test-packages` builds those in dist first.
"""

from __future__ import annotations

import filecmp
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

REPOSITORY = Path(__file__).resolve().parents[1]
OTHER = {"TZ": "Pacific/Kiritimati", "LC_ALL": "C", "PYTHONHASHSEED": "1"}


def main() -> int:
    """Build and compare; print the names of what differs or is missing."""
    if subprocess.run(["git", "status", "--porcelain"], cwd=REPOSITORY, check=True, capture_output=True).stdout:
        sys.exit("make test-packages: there are changes without a commit, which a clone does not have")
    with TemporaryDirectory() as folder:
        clone, output = Path(folder, "clone"), Path(folder, "output")
        subprocess.run(["git", "clone", "--quiet", REPOSITORY, clone], check=True)
        again = [sys.executable, "-m", "deploy.build", f"--output={output}", *sys.argv[1:]]
        subprocess.run(again, cwd=clone, env=os.environ | OTHER, umask=0o077, check=True)
        built = sorted(output.iterdir())
        different = [file.name for file in built if not _same(file, REPOSITORY / "dist" / file.name)]
    sys.stdout.write("".join(f"{name} is not the same twice\n" for name in different))
    sys.stdout.write(f"{len(built) - len(different)} of {len(built)} packages are the same twice\n")
    return 1 if different or not built else 0


def _same(one: Path, other: Path) -> bool:
    return other.exists() and filecmp.cmp(one, other, shallow=False)


if __name__ == "__main__":
    sys.exit(main())
