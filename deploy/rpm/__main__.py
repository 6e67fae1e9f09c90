"""`python -m deploy.rpm --target el9|el10|fc42|fc43 [--architecture amd64|arm64]`: build dist/dockershim-….rpm.

With it come dockershim-cri-dockerd, which has the names of cri-dockerd, and dockershim-selinux. Debian's rpmbuild
builds them, with the files of the Debian package.
"""

from __future__ import annotations

import bz2
import gzip
import re
import shutil
import sys
from datetime import UTC, datetime
from pathlib import Path

from deploy import tree
from deploy.targets import ARCHITECTURES, ROOT, Target
from dockershim.server import cri_dockerd

HERE = Path(__file__).parent
SPEC = HERE / "dockershim.spec"
SYSTEM_UNITS = Path("usr/lib/systemd/system")
#: rpmbuild's settings. The builder's name, times of files and of the build, and build ids must not make a difference.
SETTINGS = {
    "_buildhost": "reproducible",
    "use_source_date_epoch_as_buildtime": "1",
    "clamp_mtime_to_source_date_epoch": "1",
    # A tag of every package, also of those that fit all machines; rpm installs them by their architecture.
    "_target_platform": "linux",
    "_binary_payload": "w15.zstdio",
    "_binary_filedigest_algorithm": "8",
    # Nothing is compiled, and the libraries of the wheels stay as their hashes say.
    "__os_install_post": "%{nil}",
    "debug_package": "%{nil}",
    "_build_id_links": "none",
    "_rpmfilename": "%%{NAME}-%%{VERSION}-%%{RELEASE}.%%{ARCH}.rpm",
}
#: Where the format's lead, which the header has replaced, has the number of a machine, in two bytes.
LEAD_MACHINE, NO_MACHINE = 8, b"\0\0"


def main() -> int:
    """Build the packages that the arguments ask for, and print their paths."""
    return tree.command("rpm", __doc__, build)


def build(target: Target, architecture: str, revision: str, output: Path) -> tuple[Path, ...]:
    """Build the packages in build/rpm, reproducibly, and return their paths in ``output``: the server's first."""
    tree.check_revision(revision)
    work, epoch = tree.begin("rpm", target, architecture)
    files = work / "files"
    tree.write_server(files, target, architecture)
    _write_texts(files)
    _write_units(files)
    _write_drop_in(files)
    _write_module(work, files)
    (work / "dockershim.spec").write_text(spec(target, revision, files, epoch))
    top = work / "top"
    defines = (f"--define={name} {value}" for name, value in (SETTINGS | {"_topdir": top, "_rpmdir": top}).items())
    machine = f"--target={ARCHITECTURES[architecture]}-linux"
    tree.run("rpmbuild", "-bb", machine, *defines, str(work / "dockershim.spec"))
    output.mkdir(parents=True, exist_ok=True)
    names = file_names(target, architecture, revision)
    for name in names[1:]:
        _forget_machine(top / name)
    return tuple(Path(shutil.copy2(top / name, output / name)) for name in names)


def _forget_machine(package: Path) -> None:
    """Write one number for all machines into a package that has no architecture.

    It is in the package's first bytes, which rpm does not read and no signature covers.
    """
    with package.open("r+b") as file:
        file.seek(LEAD_MACHINE)
        file.write(NO_MACHINE)


def spec(target: Target, revision: str, files: Path, epoch: int) -> str:
    """The spec file, with all that differs between builds filled in."""
    lock = re.findall(r"^([a-z0-9-]+)==(\S+)", tree.LOCK.read_text(), re.MULTILINE)
    parts = {
        "@VERSION@": tree.version(),
        "@RELEASE@": f"{revision}{target.release}",
        "@PYTHON@": target.python,
        "@GLIBC@": tree.WHEELS_GLIBC,
        "@CRI_DOCKERD@": cri_dockerd.VERSION,
        "@BUNDLED@": "\n".join(f"Provides: bundled(python3dist({name})) = {version}" for name, version in lock),
        "@FILES@": str(files),
        "@DAY@": datetime.fromtimestamp(epoch, UTC).strftime("%a %b %d %Y"),
    }
    text = SPEC.read_text()
    for name, part in parts.items():
        text = text.replace(name, part)
    return text


def _write_texts(files: Path) -> None:
    pages = files / "man"
    tree.write_texts(files, pages)
    for page in sorted(pages.iterdir()):
        compressed = files / f"usr/share/man/man{page.suffix[1:]}/{page.name}.gz"
        compressed.parent.mkdir(parents=True, exist_ok=True)
        compressed.write_bytes(gzip.compress(page.read_bytes(), mtime=0))
    shutil.rmtree(pages)
    # Debian and its kin have a folder of their own for packages' completions.
    (files / "usr/share/zsh/vendor-completions").rename(files / "usr/share/zsh/site-functions")
    tree.write_documents(files / "usr/share/doc/dockershim")
    licence = files / "usr/share/licenses/dockershim/LICENSE"
    licence.parent.mkdir(parents=True)
    shutil.copy(ROOT / "LICENSE", licence)


def _write_units(files: Path) -> None:
    for name in tree.UNITS:
        unit = files / SYSTEM_UNITS / name
        unit.parent.mkdir(parents=True, exist_ok=True)
        unit.write_text(tree.unit(name))


def _write_drop_in(files: Path) -> None:
    tree.write_command(files / "usr/bin/cri-dockerd", tree.DROP_IN_COMMAND)
    # kubespray's names.
    for kind in ("service", "socket"):
        (files / SYSTEM_UNITS / f"cri-dockerd.{kind}").symlink_to(f"cri-docker.{kind}")


def _write_module(work: Path, files: Path) -> None:
    """Compile the SELinux module and put it where semodule finds it."""
    policy = HERE / "selinux/dockershim"
    binary, package = work / "dockershim.mod", work / "dockershim.pp"
    tree.run("checkmodule", "-M", "-m", "-o", str(binary), f"{policy}.te")
    tree.run("semodule_package", "-o", str(package), "-m", str(binary), "-f", f"{policy}.fc")
    installed = files / "usr/share/selinux/packages/dockershim.pp.bz2"
    installed.parent.mkdir(parents=True)
    installed.write_bytes(bz2.compress(package.read_bytes()))


def file_names(target: Target, architecture: str, revision: str = "1") -> tuple[str, ...]:
    """The names of the packages' files: the server's, that of the names of cri-dockerd, and SELinux's."""
    end = f"{tree.version()}-{revision}{target.release}"
    return (
        f"dockershim-{end}.{ARCHITECTURES[architecture]}.rpm",
        f"dockershim-cri-dockerd-{end}.noarch.rpm",
        f"dockershim-selinux-{end}.noarch.rpm",
    )


if __name__ == "__main__":
    sys.exit(main())
