"""A guest as somebody has it who has just installed Debian 13: no engine, no Kubernetes, nothing of ours.

A guest has no way out, so its apt has one repository, a folder on its disk: Debian's packages as they are, and
Kubernetes' as stand-ins, with the programs that the tests build.
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.conformance import tools as cri_tools
from tests.kubernetes import programs, units
from tests.node import supplies
from tests.node.cache import appearing, entry, locked, used
from tests.node.inside import REGISTRY, REGISTRY_CONFIG
from tests.node.packages import install, run
from tests.vm import debian, image

MACHINE = ("dpkg-dev",)
# What a virtual machine needs to boot, and what the tests reach it by.
SYSTEM = ("linux-image-cloud-amd64", "initramfs-tools", "systemd-sysv", "udev", "dbus", "kmod", "openssh-server")
# Debian's standard system has them, too, and without KVM a guest needs minutes to set them up.
STANDARD = ("apparmor", "bash-completion", "ca-certificates", "perl", "python3", "xz-utils")
# What the page has its reader install from Debian.
INSTALLED_BY_THE_PAGE = ("docker.io", "containernetworking-plugins", "curl")
PACKAGES = "srv/packages"
FILES = {
    **image.MACHINE_FILES,
    "etc/apt/sources.list": f"deb [trusted=yes] file:///{PACKAGES} ./\n",
    "etc/docker-registry.yml": REGISTRY_CONFIG,
    "etc/systemd/system/docker-registry.service": """\
[Service]
ExecStart=/usr/local/bin/docker-registry serve /etc/docker-registry.yml
[Install]
WantedBy=multi-user.target
""",
}
ENABLED = ("systemd-networkd", "ssh", "docker-registry")
# The one that the page has its reader install.
KUBERNETES = programs.NEWEST
VERSION = KUBERNETES.version


@contextmanager
def provided(package: Path) -> Iterator[image.Image]:
    """The image of a Debian with ``package``, our .deb, in root's home. It is made when anything in it has changed."""
    archive = _system()
    registry = supplies.provide("28")
    kubelet, crictl = KUBERNETES.provide("kubelet"), cri_tools.provide() / "crictl"
    parts = (archive.parent.name, registry.registry.name, kubelet.parent.name, crictl.parent.name)
    content = repr(parts).encode() + Path(__file__).read_bytes() + package.read_bytes()

    def make(made: Path) -> None:
        with tempfile.TemporaryDirectory(dir=made.parent) as scratch:
            root = Path(scratch) / "root"
            image.unpack(archive, root, FILES)
            shutil.copytree(registry.registry, root / REGISTRY.relative_to("/"), dirs_exist_ok=True)
            shutil.copy2(registry.base / "usr/bin/docker-registry", root / "usr/local/bin")
            shutil.copy2(package, root / "root")
            _add_package(root, "kubelet", {"usr/bin/kubelet": kubelet}, {"kubelet.service": units.KUBELET})
            _add_package(root, "cri-tools", {"usr/bin/crictl": crictl}, {})
            (root / PACKAGES / "Packages").write_text(
                run("dpkg-scanpackages", "--multiversion", ".", cwd=root / PACKAGES)
            )
            image.finish(made, root, ENABLED)

    with image.kept(f"clean-{hashlib.sha256(content).hexdigest()[:8]}", make) as disk:
        yield disk


def _system() -> Path:
    """The archive of the root file system, with the packages that are installed later in a folder."""
    target = entry("vm-clean", Path(__file__).read_bytes())
    with locked("vm-clean"):
        install((*debian.MACHINE, *MACHINE))
        if not used(target):
            with appearing(target) as made:
                _bootstrap(made / "root.tar")
    return target / "root.tar"


def _bootstrap(archive: Path) -> None:
    settings = {
        "etc/initramfs-tools/conf.d/vm": debian.INITRAMFS,
        "etc/initramfs-tools/modules": debian.INITRAMFS_MODULES,
    }
    hooks = []
    for path, content in settings.items():
        file = archive.with_name(Path(path).name)
        file.write_text(content)
        hooks.append(f'--setup-hook=mkdir -p "$1/{Path(path).parent}" && cp {file} "$1/{path}"')
    download = (
        "apt-get -q -y -o APT::Install-Recommends=true -o APT::Sandbox::User=root -o APT::Keep-Downloaded-Packages=true"
        f" -o Dir::Cache::archives=/{PACKAGES} --download-only install {' '.join(INSTALLED_BY_THE_PAGE)}"
    )
    run(
        "mmdebstrap",
        "--mode=root",
        # What Debian's installer gives when nothing is chosen.
        "--variant=important",
        # A mirror may be a snapshot of some day: its signature is checked, its age is not.
        '--aptopt=Acquire::Check-Valid-Until "false"',
        *hooks,
        f"--include={','.join((*SYSTEM, *STANDARD))}",
        f'--customize-hook=mkdir -p "$1/{PACKAGES}/partial" && chroot "$1" {download}',
        # It makes apt leave recommended packages out, other than on a Debian of somebody's own.
        '--customize-hook=rm -f "$1/etc/apt/apt.conf.d/99mmdebstrap"',
        debian.TRIXIE.name,
        archive,
        debian.TRIXIE.source,
    )


def _add_package(root: Path, name: str, programs: Mapping[str, Path], units: Mapping[str, str]) -> None:
    """Put a package with these files into the guest's repository: paths without the first slash, names of units."""
    with tempfile.TemporaryDirectory(dir=root.parent) as folder:
        tree = Path(folder) / name
        control = tree / "DEBIAN/control"
        control.parent.mkdir(parents=True)
        fields = {"Package": name, "Version": VERSION, "Architecture": "amd64", "Maintainer": "nobody <nobody@invalid>"}
        fields["Description"] = "stand-in for Kubernetes' package"
        control.write_text("".join(f"{key}: {value}\n" for key, value in fields.items()))
        for path, program in programs.items():
            (tree / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(program, tree / path)
        for unit, text in units.items():
            file = tree / "usr/lib/systemd/system" / unit
            file.parent.mkdir(parents=True)
            file.write_text(text)
        run("dpkg-deb", "-Znone", "--root-owner-group", "-b", tree, root / PACKAGES / f"{name}_{VERSION}_amd64.deb")
