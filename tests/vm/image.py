"""A guest's disk: the operating system with the server installed as README tells it, images, CNI, critest and keys.

It is made anew, within a minute, when the server's sources or anything else in it has changed.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from tests.conformance import tools as cri_tools
from tests.node import supplies
from tests.node.cache import CACHE, REPOSITORY, appearing, hold, locked, used
from tests.node.engine import REGISTRIES
from tests.node.inside import CNI_CONFIG, REGISTRY_CONFIG
from tests.node.packages import run
from tests.vm import debian

DISK_SIZE = "8G"
KEPT = 4  # so many disks, the last used ones, stay in the cache
PYTHON = "3.13"  # Debian 13's
PIP = (sys.executable, "-m", "pip", "-q")
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")
SERVER = ("dockershim", "background", "cni", "checkpoints", "loopio", "streaming", "pyproject.toml", "hatch_build.py")
DEPLOYED = ("dockershim.service", "dockershim.socket", "dockershim.service.d/10-socket.conf")

NAME = "guest"


def hosts(*registries: str) -> str:
    """Docker takes plain HTTP for what resolves to 127.0.0.0/8: the guest's own registry answers for all of these."""
    return f"127.0.0.1 localhost {' '.join(registries)}\n127.0.1.1 {NAME}\n::1 localhost ip6-localhost\n"


# The first is the default. Debian's packages are those of 28; of 29 the daemon is built, as for test nodes.
ENGINES = ("29", "28")


def daemon(*registries: str) -> str:
    """The engine's daemon.json. Docker 29 takes no plain HTTP just because a name is the machine's own."""
    # User Mode Linux has no time namespaces.
    settings = {"insecure-registries": registries, "features": {"time-namespaces": False}}
    return json.dumps(settings, indent=2)


#: What makes it a machine that ssh reaches.
MACHINE_FILES = {
    "etc/hostname": f"{NAME}\n",
    "etc/hosts": hosts(*REGISTRIES),
    "etc/resolv.conf": "nameserver 127.0.0.1\nsearch node.test\n",
    "etc/machine-id": f"{hashlib.sha256(NAME.encode()).hexdigest()[:32]}\n",
    "etc/ssh/sshd_config.d/vm.conf": "HostKey /etc/ssh/ssh_host_ed25519_key\nMaxStartups 100\nUseDNS no\n",
    # It is kept over a power cut only when this folder is there.
    "var/log/journal/.keep": "",
}
FILES = {
    **MACHINE_FILES,
    "etc/docker/daemon.json": daemon(*REGISTRIES),
    "etc/docker/registry/config.yml": REGISTRY_CONFIG,
    "etc/systemd/system/docker-registry.service.d/vm.conf": "[Service]\nUser=root\n",
    "etc/cni/net.d/10-test.conflist": json.dumps(CNI_CONFIG, indent=2),
    "etc/dockershim/config.toml": 'cni_bin_dir = ["/usr/lib/cni"]\n',
    "etc/crictl.yaml": "runtime-endpoint: unix:///run/dockershim.sock\ntimeout: 60\n",
}
ENABLED = ("systemd-networkd", "ssh", "docker-registry", "dockershim.service", "dockershim.socket")
# What only takes time from the tests. systemd compiles the profiles of browsers and the like at each boot; the engine
# brings its own.
PROFILES = "etc/apparmor.d"
MASKED = (
    "apt-daily.timer",
    "apt-daily-upgrade.timer",
    "dpkg-db-backup.timer",
    "e2scrub_all.timer",
    "e2scrub_reap.service",
    "fstrim.timer",
    "getty.target",
    "sshd-keygen.service",
    "systemd-pstore.service",
)


@dataclass(frozen=True, slots=True)
class Image:
    """What a guest boots from, and the key that opens it. Guests write to overlays, never to `disk`.

    `kernel` and `initrd` are Debian's, for qemu; User Mode Linux is a kernel of its own.
    """

    folder: Path

    @property
    def disk(self) -> Path:
        return self.folder / "disk.img"

    @property
    def kernel(self) -> Path:
        return self.folder / "vmlinuz"

    @property
    def initrd(self) -> Path:
        return self.folder / "initrd.img"

    @property
    def key(self) -> Path:
        return self.folder / "id_ed25519"


@dataclass(frozen=True, slots=True)
class Kind:
    """What a disk has besides the system and the server: paths in the guest have no first slash.

    ``registries`` are storage folders whose images the guest's registry has, ``programs`` are files of the cache.
    """

    files: Mapping[str, str] = field(default_factory=lambda: FILES)
    registries: tuple[Path, ...] = ()
    programs: Mapping[str, Path] = field(default_factory=dict)
    enabled: tuple[str, ...] = ENABLED

    def __str__(self) -> str:
        """All that it is made of: a folder of the cache has a name for what it holds."""
        programs = {path: program.parent.name for path, program in self.programs.items()}
        return repr((sorted(self.files.items()), [folder.name for folder in self.registries], programs, self.enabled))


@contextmanager
def provided(kind: Kind | None = None, engine: str = ENGINES[0]) -> Iterator[Image]:
    """The image of the server as it is in this checkout. While the block lasts, no other run removes it.

    Without a kind it has what the tests of the server need. The engine is one of ENGINES.
    """
    archive = debian.provide()
    programs = {f"usr/local/bin/{path.name}": path for path in sorted(cri_tools.provide().iterdir())}
    chosen = kind or Kind(registries=(supplies.provide("28").registry,), programs=programs)
    chosen = replace(chosen, programs={**chosen.programs, **programs_of(engine)})
    with kept(_key(archive.parent.name, chosen), partial(_make, archive, chosen)) as image:
        yield image


def programs_of(engine: str) -> dict[str, Path]:
    """The programs of an engine, one of ENGINES, that Debian's packages do not have; by their paths in the guest."""
    if engine not in supplies.BUILT:
        return {}
    return {f"usr/sbin/{path.name}": path for path in sorted(supplies.build_moby().iterdir())}


@contextmanager
def kept(name: str, make: Callable[[Path], None]) -> Iterator[Image]:
    """The cache's image of this name; ``make`` fills its folder the first time. It is there while the block lasts."""
    target = CACHE / f"vm-image-{name}"
    with locked("vm-image"):
        if not used(target):
            with appearing(target) as made:
                make(made)
        held = hold(target, fcntl.LOCK_SH)
        _sweep()
    try:
        yield Image(target)
    finally:
        os.close(held)


def _key(archive: str, kind: Kind) -> str:
    digest = hashlib.sha256(f"{archive} {kind}".encode())
    parts = [REPOSITORY / name for name in SERVER] + [REPOSITORY / "deploy" / name for name in DEPLOYED]
    files = sorted(file for part in parts for file in (part.rglob("*") if part.is_dir() else [part]))
    for file in (Path(__file__), *files):
        made = file.suffix == ".pyc" or file.stem.endswith("_pb2")
        if file.is_file() and not made:
            digest.update(f"{file.relative_to(REPOSITORY)} {hashlib.sha256(file.read_bytes()).hexdigest()}\n".encode())
    return digest.hexdigest()[:8]


def _make(archive: Path, kind: Kind, made: Path) -> None:
    with tempfile.TemporaryDirectory(dir=made.parent) as scratch:
        root = Path(scratch) / "root"
        unpack(archive, root, kind.files)
        for registry in kind.registries:
            shutil.copytree(registry, root / "var/lib/docker-registry", dirs_exist_ok=True)
        for path, program in kind.programs.items():
            shutil.copy2(program, root / path)
            (root / path).chmod(0o755)
        _install_server(root)
        finish(made, root, kind.enabled)


def unpack(archive: Path, root: Path, files: Mapping[str, str]) -> None:
    """Make the folder ``root`` of a system's archive, and write the files, which have no first slash, into it."""
    root.mkdir()
    run("tar", "--extract", "--numeric-owner", "--xattrs", "--xattrs-include=*", f"--file={archive}", "-C", root)
    for path, content in files.items():
        file = root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.unlink(missing_ok=True)
        file.write_text(content)
    for profile in (root / PROFILES).glob("*"):
        if profile.is_file():
            profile.unlink()


def finish(made: Path, root: Path, enabled: Sequence[str]) -> None:
    """Make the disk, the key and what boots it in the folder ``made``, with these units enabled."""
    _give_key(made, root)
    # A guest's address is in its kernel's arguments: many boot the same disk.
    run("chroot", root, "systemctl", "enable", "systemd-network-generator", *enabled)
    run("chroot", root, "systemctl", "mask", *MASKED)
    for folder in ("etc", "var"):
        # systemd takes a system without it for one whose /usr is new, and spends seconds of each boot on caches.
        (root / folder / ".updated").touch()
    for name in ("vmlinuz", "initrd.img"):
        shutil.copy2(next((root / "boot").glob(f"{name}-*")), made / name)
    run("mke2fs", "-q", "-t", "ext4", "-d", root, made / "disk.img", DISK_SIZE)


def wheel(sources: Path, folder: Path) -> Path:
    """A wheel of the server, in a folder that has none yet."""
    run(*PIP, "wheel", "--no-deps", f"--wheel-dir={folder}", sources)
    [made] = folder.glob("*.whl")
    return made


def _install_server(root: Path) -> None:
    """Do what README says, but with a wheel of this checkout: the guest's own pip has no way out."""
    wheels = root / "tmp/wheels"
    own = wheel(REPOSITORY, wheels)
    foreign = ("--only-binary=:all:", f"--python-version={PYTHON}", *(f"--platform={name}" for name in PLATFORMS))
    run(*PIP, "download", *foreign, f"--dest={wheels}", own)
    run("chroot", root, "python3", "-m", "venv", "/opt/dockershim")
    guests_pip = ("/opt/dockershim/bin/pip", "-q", "install", "--no-index", "--find-links=/tmp/wheels")
    run("chroot", root, *guests_pip, f"/tmp/wheels/{own.name}")
    shutil.rmtree(wheels)
    for name in DEPLOYED:
        unit = root / "etc/systemd/system" / name
        unit.parent.mkdir(exist_ok=True)
        shutil.copy2(REPOSITORY / "deploy" / name, unit)


def _give_key(made: Path, root: Path) -> None:
    """Make a key that root of the guest accepts. The guest's own come with its ssh server."""
    run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", NAME, "-f", made / "id_ed25519")
    folder = root / "root/.ssh"
    folder.mkdir(mode=0o700, exist_ok=True)
    shutil.copy2(made / "id_ed25519.pub", folder / "authorized_keys")


def _sweep() -> None:
    """Remove the disks that were used least lately, but none of a guest that runs."""
    folders = sorted(CACHE.glob("vm-image-*"), key=lambda folder: folder.stat().st_mtime, reverse=True)
    for folder in (folder for folder in folders[KEPT:] if folder.is_dir()):
        try:
            held = hold(folder)
        except BlockingIOError:
            continue
        shutil.rmtree(folder)
        os.close(held)
