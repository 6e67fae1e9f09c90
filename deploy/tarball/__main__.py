"""`python -m deploy.tarball [--architecture amd64|arm64]`: build dist/dockershim-VERSION-linux-ARCHITECTURE.tar.gz.

It has the server's wheels for Python 3.11 to 3.14, with glibc and musl, and an installer that needs Python alone.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from deploy import runc
from deploy.deb import texts
from deploy.tarball import archives, environment, installer, wheels
from deploy.targets import ARCHITECTURES, ROOT, own_architecture
from deploy.tree import BILL, BuildError, run, sbom
from dockershim import __version__

HERE = Path(__file__).parent
#: What runs on the node, as modules of this repository.
RUNTIME = ("__init__.py", "tarball/__init__.py", "tarball/environment.py")
DOCUMENTS = ("README.md", "CHANGELOG.md", "LICENSE", "docs/*.md", "deploy/*.service", "deploy/*.socket")
#: Where shells look for completions below a prefix.
COMPLETIONS = {
    "bash": "share/bash-completion/completions/dockershim",
    "zsh": "share/zsh/site-functions/_dockershim",
    "fish": "share/fish/vendor_completions.d/dockershim.fish",
}


def main() -> int:
    """Build the tarball that the arguments ask for, and print its path."""
    parser = argparse.ArgumentParser(prog="python -m deploy.tarball", description=__doc__)
    parser.add_argument("--architecture", choices=ARCHITECTURES, default=own_architecture())
    parser.add_argument("--output", type=Path, default=ROOT / "dist")
    given = parser.parse_args()
    try:
        made = build(given.architecture, given.output)
    except BuildError as error:
        sys.stderr.write(f"make tarball: {error}\n")
        return 1
    sys.stdout.write(f"{os.path.relpath(made)}\n")
    return 0


def file_name(architecture: str) -> str:
    """The name of the tarball. Without its ending it is that of the folder in it."""
    return f"dockershim-{__version__}-linux-{architecture}.tar.gz"


def build(architecture: str, output: Path) -> Path:
    """Build the tarball reproducibly, and return its path in ``output``. Raises BuildError."""
    epoch = commit_time()
    files = with_contents(server_files(architecture), wheels.provide(architecture, wheels.GLIBC, wheels.MUSL))
    output.mkdir(parents=True, exist_ok=True)
    file = output / file_name(architecture)
    top = file.name.removesuffix(".tar.gz")
    archives.write_tar(file, {f"{top}/{name}": content for name, content in files.items()}, epoch)
    return file


def server_files(architecture: str) -> dict[str, bytes]:
    """What the tarball has in addition to wheels, by path."""
    files = {
        installer.SCRIPT: start_script(installer.SCRIPT, '"$here/installer"'),
        f"{installer.INSTALLER}__main__.py": main_module("deploy.tarball.installer"),
        installer.CONFIG: texts.config_file().encode(),
        installer.OPENRC: (HERE / "openrc.sh").read_bytes(),
        f"{installer.PREFIXED}bin/dockershim-runc": runc.program(architecture).read_bytes(),
        **{
            f"{installer.INSTALLER}{name}": content
            for name, content in modules((*RUNTIME, "tarball/installer.py")).items()
        },
    }
    for shell, path in COMPLETIONS.items():
        files[f"{installer.PREFIXED}{path}"] = texts.completion(shell).encode()
    for page in ("dockershim.1", "dockershim-config.5"):
        text = texts.manual_page((ROOT / f"deploy/deb/{page}.scd").read_text())
        files[f"{installer.PREFIXED}share/man/man{page[-1]}/{page}"] = run("scdoc", text=text).encode()
    for unit in ("dockershim.service", "dockershim.socket", "dockershim.service.d/10-socket.conf"):
        files[f"{installer.UNITS}{unit}"] = (ROOT / "deploy" / unit).read_bytes()
    for pattern in DOCUMENTS:
        files |= {str(file.relative_to(ROOT)): file.read_bytes() for file in ROOT.glob(pattern)}
    with tempfile.TemporaryDirectory() as folder:
        bill = Path(folder, BILL)
        sbom(bill)
        files[BILL] = bill.read_bytes()
    return files


def with_contents(files: Mapping[str, bytes], found: Mapping[str, list[Path]]) -> dict[str, bytes]:
    """``files`` with the wheels, and the table of contents that ``environment.Bundle`` reads."""
    shipped = dict(files)
    shipped |= {f"wheels/{wheel.name}": wheel.read_bytes() for paths in found.values() for wheel in paths}
    table = {
        "version": __version__,
        "files": {name: hashlib.sha256(content).hexdigest() for name, content in sorted(shipped.items())},
        "wheels": {abi: sorted(f"wheels/{wheel.name}" for wheel in paths) for abi, paths in sorted(found.items())},
    }
    return shipped | {environment.CONTENTS: json.dumps(table, indent=1).encode()}


def start_script(name: str, program: str) -> bytes:
    """The script that looks for a Python and starts ``program``, a word of sh, with it."""
    text = (HERE / "start.sh").read_text()
    return text.replace("@NAME@", name).replace("@PROGRAM@", program).encode()


def main_module(module: str) -> bytes:
    """What Python runs of a folder or a zip."""
    return f"import sys\n\nfrom {module} import main\n\nsys.exit(main())\n".encode()


def modules(names: Iterable[str]) -> dict[str, bytes]:
    """Modules below deploy that run on the node, by path."""
    return {f"deploy/{name}": (ROOT / "deploy" / name).read_bytes() for name in names}


def commit_time() -> int:
    """The time of the last commit in seconds: that of all files that are built."""
    epoch = run("git", "log", "-1", "--format=%ct", cwd=ROOT).strip()
    os.environ["SOURCE_DATE_EPOCH"] = epoch
    return int(epoch)


if __name__ == "__main__":
    sys.exit(main())
