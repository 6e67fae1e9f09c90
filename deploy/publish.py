"""`python -m deploy.publish --gpg-key KEY [--minisign-key FILE]`: make a release in dist/release-VERSION.

Its files are the wheel, the packages of all targets, the bill of materials and the VEX file, with signed checksums. The
folders apt and rpm are repositories for apt and dnf: any web server can serve the whole folder. `make release` runs it.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from deploy import release, vex
from deploy.build import build_all, build_bundles
from deploy.targets import ARCHITECTURES, TARGETS, of_kind
from deploy.tree import BuildError, run
from dockershim import __version__

CHECKSUMS = "SHA256SUMS"
PUBLIC_KEY = "dockershim.asc"


def main() -> int:
    """Make the release that the arguments ask for, and print its folder."""
    parser = argparse.ArgumentParser(prog="python -m deploy.publish", description=__doc__)
    parser.add_argument("--gpg-key", required=True, help="fingerprint of a secret key of gpg, which signs everything")
    parser.add_argument("--minisign-key", type=Path, help="secret key of minisign, which signs the checksums too")
    parser.add_argument("--draft", action="store_true", help="go on although the checkout is not ready for a release")
    parser.add_argument("targets", nargs="*", default=[], help="with --draft: build only these")
    given = parser.parse_args()
    if given.targets and not given.draft:
        parser.error("a release has all targets")
    try:
        folder = publish(given.gpg_key, given.minisign_key, given.draft, given.targets or list(TARGETS))
    except BuildError as error:
        sys.stderr.write(f"make release: {error}\n")
        return 1
    sys.stdout.write(f"{os.path.relpath(folder)}\n")
    return 0


def publish(gpg_key: str, minisign_key: Path | None, draft: bool, targets: Sequence[str]) -> Path:
    """Build, sign and lay out everything, and return the folder."""
    # Before minutes of builds.
    fingerprint = check_key(gpg_key)
    if minisign_key is not None and not minisign_key.is_file():
        raise BuildError(f"{minisign_key}: must be the file of a secret key of minisign")
    problems = list(release.checkout_problems())
    for problem in problems:
        sys.stderr.write(f"make release: {problem}\n")
    if problems and not draft:
        raise BuildError("the checkout is not ready for a release: see above")
    folder = release.DIST / f"release-{__version__}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    release.build_wheel(folder)
    vex.write(folder / f"dockershim-{__version__}.vex.cdx.json")
    packages = list(build_all(targets, "1", folder))
    if not draft:
        list(build_bundles(folder))
    (folder / PUBLIC_KEY).write_text(gpg("--armor", "--export", fingerprint))
    write_apt(folder / "apt", packages, fingerprint)
    write_rpm(folder / "rpm", packages, fingerprint)
    sign_checksums(folder, fingerprint, minisign_key)
    return folder


def check_key(key: str) -> str:
    """The fingerprint of a secret key that can sign. Raises BuildError if gpg has none, or more than one."""
    rows = [line.split(":") for line in gpg("--with-colons", "--list-secret-keys", "--", key).splitlines()]
    # A row with the fingerprint follows that of its key; there are rows of subkeys, too.
    fingerprints = [row[9] for before, row in pairwise(rows) if (before[0], row[0]) == ("sec", "fpr")]
    if len(fingerprints) != 1:
        raise BuildError(f"{key}: gpg has {len(fingerprints)} secret keys of this name; name one by its fingerprint")
    return fingerprints[0]


def gpg(*arguments: str) -> str:
    """Run gpg with the keyring of GNUPGHOME. Raises BuildError, with what it said, if it fails."""
    return run("gpg", "--batch", "--yes", *arguments)


def sign_checksums(folder: Path, fingerprint: str, minisign_key: Path | None) -> None:
    """Write the checksums of the folder's own files, in sha256sum's form, and sign them."""
    files = sorted(file for file in folder.iterdir() if file.is_file())
    checksums = folder / CHECKSUMS
    checksums.write_text("".join(f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in files))
    gpg("--local-user", fingerprint, "--armor", "--detach-sign", str(checksums))
    if minisign_key is not None:
        # It may ask for the key's password.
        sign = ("minisign", "-S", "-s", str(minisign_key), "-m", str(checksums), "-t", f"dockershim {__version__}")
        if subprocess.run(sign).returncode:
            raise BuildError(f"{minisign_key}: minisign could not sign with it: see above")


def write_apt(folder: Path, packages: Sequence[Path], fingerprint: str) -> None:
    """A repository for apt, with a suite for each target."""
    for target in of_kind("deb").values():
        pool = folder / "pool" / target.name
        pool.mkdir(parents=True)
        for package in packages:
            if f"{target.release}_" in package.name:
                shutil.copy2(package, pool)
        suite = folder / "dists" / target.name
        for architecture in ARCHITECTURES:
            index = run("apt-ftparchive", f"--arch={architecture}", "packages", f"pool/{target.name}", cwd=folder)
            listed = suite / f"main/binary-{architecture}/Packages"
            listed.parent.mkdir(parents=True)
            listed.write_text(index)
            listed.with_suffix(".gz").write_bytes(gzip.compress(index.encode(), mtime=0))
        fields = {
            "Origin": "dockershim",
            "Label": "dockershim",
            "Suite": target.name,
            "Codename": target.name,
            "Architectures": " ".join(ARCHITECTURES),
            "Components": "main",
        }
        options = (f"-oAPT::FTPArchive::Release::{name}={value}" for name, value in fields.items())
        (suite / "Release").write_text(run("apt-ftparchive", *options, "release", str(suite)))
        signer = ("--local-user", fingerprint, "--armor")
        gpg(*signer, "--output", str(suite / "InRelease"), "--clearsign", str(suite / "Release"))
        gpg(*signer, "--output", str(suite / "Release.gpg"), "--detach-sign", str(suite / "Release"))


def write_rpm(folder: Path, packages: Sequence[Path], fingerprint: str) -> None:
    """A repository for dnf for each target and architecture. Its packages are signed, unlike those of the release."""
    for target in of_kind("rpm").values():
        for machine in ARCHITECTURES.values():
            repository = folder / target.name / machine
            repository.mkdir(parents=True)
            ends = tuple(f"{target.release}.{one}.rpm" for one in (machine, "noarch"))
            copies = [shutil.copy2(package, repository) for package in packages if package.name.endswith(ends)]
            if copies:
                # Debian's rpm does not know where gpg is.
                settings = (f"--define=__gpg {shutil.which('gpg')}", f"--define=_gpg_name {fingerprint}")
                run("rpmsign", *settings, "--addsign", *map(str, copies))
            run("createrepo_c", "--quiet", str(repository))
            gpg("--local-user", fingerprint, "--armor", "--detach-sign", str(repository / "repodata/repomd.xml"))


if __name__ == "__main__":
    sys.exit(main())
