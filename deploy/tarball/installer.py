"""What ./install.sh does, on the node: it installs what lies next to it, or removes what it has installed.

The server is in an environment below PREFIX/lib/dockershim, to which the link ``current`` points. An upgrade makes the
new environment next to the old one and then moves the link: until then nothing of the old one has changed. A manifest
has the fingerprint of each file that was installed, so that no other file is replaced or removed.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import json
import os
import re
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from deploy.tarball.environment import (
    Bundle,
    Refused,
    environments,
    in_use,
    is_program,
    provide,
    python,
    remove_all,
    remove_others,
)

#: Where the units of deploy/ have the command, and the OpenRC script.
INSTALLED_BY_HAND = "/opt/dockershim/bin/dockershim"
#: In the tarball: what is installed below the prefix, the units, the OpenRC script, the configuration file.
PREFIXED, UNITS, OPENRC, CONFIG = "prefix/", "systemd/", "openrc/dockershim", "config.toml"
#: What is installed to remove it all later.
SCRIPT, INSTALLER = "install.sh", "installer/"
SERVICE, SOCKET = "dockershim.service", "dockershim.socket"
DEFAULT_PREFIX = "/usr/local"
#: What the server and the commands for operators import. It is compiled by that.
CHECK = (
    "import dockershim.server.wiring, dockershim.doctor.command, dockershim.setup.command, dockershim.status.command, "
    "dockershim.tracing.export"
)
_LONGEST_PREFIX = 64
_PREFIX = re.compile(r"(/[A-Za-z0-9._+@-]+)+")
_NO_FILE = "not a file"
#: Seconds in which the processes of a service end that was stopped.
_END = 10.0
_PAUSE = 0.1


def main(arguments: Sequence[str] | None = None) -> int:
    """Return the exit code."""
    here = Path(__file__).resolve().parents[3]
    own = here.parents[1] if (here / Node.MANIFEST).exists() else DEFAULT_PREFIX
    parser = argparse.ArgumentParser(prog=SCRIPT, description="Install or upgrade dockershim, without a network.")
    parser.add_argument(
        "--prefix", default=str(own), metavar="DIR", help="where it is installed (default: %(default)s)"
    )
    parser.add_argument("--uninstall", action="store_true", help="remove it; configuration, state and pods stay")
    given = parser.parse_args(arguments)
    os.umask(0o022)
    try:
        if os.geteuid():
            raise Refused("must be run as root")
        node = Node(check_prefix(given.prefix))
        # What is said before something fails has been done.
        for line in (
            uninstall(node) if given.uninstall else install(node, Bundle.of(lambda path: (here / path).read_bytes()))
        ):
            sys.stdout.write(f"{line}\n")
    except (Refused, OSError) as error:
        sys.stderr.write(f"{SCRIPT}: {error}\n")
        return 1
    return 0


def check_prefix(text: str) -> Path:
    """The folder without symbolic links. Raises Refused if the server could not be there, or others could change it."""
    if not text.startswith("/"):
        raise Refused(f"--prefix {text!r}: must be an absolute path")
    prefix = Path(os.path.realpath(text))
    if not _PREFIX.fullmatch(str(prefix)):
        raise Refused(f"--prefix {str(prefix)!r}: its names must have only letters, digits and . _ + @ -")
    if len(str(prefix)) > _LONGEST_PREFIX:
        raise Refused(f"--prefix {str(prefix)!r}: must not be longer than {_LONGEST_PREFIX} characters")
    for folder in reversed((prefix, *prefix.parents)):
        with contextlib.suppress(FileNotFoundError):
            found = folder.lstat()
            if not stat.S_ISDIR(found.st_mode):
                raise Refused(f"--prefix {str(prefix)!r}: {folder} is not a folder")
            if found.st_uid not in (0, os.geteuid()) or found.st_mode & stat.S_IWOTH:
                raise Refused(f"--prefix {str(prefix)!r}: others than root can write to {folder}")
    return prefix


def run(*command: str) -> str:
    """Run a command; return what it printed if it failed."""
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    except OSError as error:
        return str(error)
    said = done.stdout.decode(errors="replace").strip()
    return (said or f"exit code {done.returncode}") if done.returncode else ""


@dataclass(frozen=True, slots=True)
class Node:
    """The places on this machine. In tests ``root`` is another folder than /, and ``run`` starts no programs."""

    MANIFEST = "manifest.json"

    prefix: Path
    root: Path = Path("/")
    run: Callable[..., str] = run

    @property
    def home(self) -> Path:
        return self.prefix / "lib/dockershim"

    @property
    def current(self) -> Path:
        """The link to the environment that is used."""
        return self.home / "current"

    @property
    def command(self) -> Path:
        return self.prefix / "bin/dockershim"

    @property
    def runc(self) -> Path:
        return self.prefix / "bin/dockershim-runc"

    @property
    def manifest(self) -> Path:
        return self.home / self.MANIFEST

    @property
    def config(self) -> Path:
        return self.at("/etc/dockershim/config.toml")

    def at(self, path: str) -> Path:
        return self.root / path.lstrip("/")

    @property
    def runs_systemd(self) -> bool:
        return self.at("/run/systemd/system").is_dir()

    @property
    def runs_openrc(self) -> bool:
        return self.at("/run/openrc").is_dir()

    @property
    def init_system(self) -> str:
        """UNITS, OPENRC or nothing: what runs, or else, as in a chroot, what is installed."""
        if self.runs_systemd or self.runs_openrc:
            return UNITS if self.runs_systemd else OPENRC
        if any(self.at(folder).is_dir() for folder in ("/usr/lib/systemd/system", "/lib/systemd/system")):
            return UNITS
        return OPENRC if self.at("/sbin/openrc-run").exists() else ""


@dataclass(frozen=True, slots=True)
class File:
    """A file to install, or with ``link`` a symbolic link."""

    content: bytes = b""
    link: str = ""

    @property
    def mode(self) -> int:
        return 0o755 if is_program(self.content) else 0o644

    @property
    def fingerprint(self) -> str:
        return f"-> {self.link}" if self.link else hashlib.sha256(self.content).hexdigest()


def fingerprint(path: Path) -> str:
    """Of what is at a path; of nothing it is empty."""
    if path.is_symlink():
        return f"-> {path.readlink()}"
    if path.is_file():
        return hashlib.sha256(path.read_bytes()).hexdigest()
    return _NO_FILE if path.exists() else ""


@dataclass(slots=True)
class Manifest:
    """What was installed: fingerprints of files by path (two while one is replaced), and folders that were made."""

    files: dict[str, list[str]] = field(default_factory=dict)
    folders: list[str] = field(default_factory=list)

    @classmethod
    def read(cls, file: Path) -> Manifest | None:
        """None if there is none. Raises Refused for one that is damaged."""
        try:
            table = json.loads(file.read_bytes())
            files = {str(path): [str(one) for one in found] for path, found in table["files"].items()}
            return cls(files, [str(folder) for folder in table["folders"]])
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise Refused(f"{file}: is damaged ({error}), so it is unknown what was installed") from None

    def write(self, file: Path) -> None:
        text = json.dumps({"files": self.files, "folders": self.folders}, indent=1)
        _place(file, File(text.encode()))

    def has(self, path: Path) -> bool:
        """Whether a file is as it was installed."""
        return fingerprint(path) in self.files.get(str(path), ())


# -- Installation.


def install(node: Node, bundle: Bundle) -> Iterator[str]:
    """Install or upgrade, and tell what was done. Raises Refused and OSError."""
    package = node.at("/usr/lib/dockershim")
    if (package / "pyvenv.cfg").exists():
        raise Refused(f"{package}: is of a package of dockershim; remove the package first")
    wanted = files(node, bundle)
    folders = _missing_folders((node.manifest, *wanted))
    _make_folders(folder for folder in folders if node.home.is_relative_to(folder))
    with _alone(node.home):
        before = Manifest.read(node.manifest) or Manifest()
        changed = _compare(wanted, before)
        after = Manifest(folders=[*before.folders, *map(str, folders)])
        for path, file in wanted.items():
            if path in changed:
                after.files[str(path)] = before.files[str(path)]
            elif before.has(path) or not fingerprint(path):
                after.files[str(path)] = [file.fingerprint]
        # A run that is cut short from here on leaves nothing that the manifest does not have.
        names = sorted({*before.files, *after.files})
        both = {name: [*before.files.get(name, ()), *after.files.get(name, ())] for name in names}
        Manifest(both, after.folders).write(node.manifest)

        old = fingerprint(node.current)
        environment = provide(bundle, node.home, _problem)
        _make_folders(folders)
        stale = [path for path, file in wanted.items() if fingerprint(path) != file.fingerprint and path not in changed]
        _place(node.current, File(link=environment.name))
        for path in stale:
            _place(path, wanted[path])
        _place_config(node, bundle)
        _remove_files(Manifest({name: found for name, found in before.files.items() if name not in after.files}))
        after.write(node.manifest)

        yield f"dockershim {bundle.version} is installed in {node.prefix}, for {python()}."
        for path in changed:
            yield f"{path} was changed after its installation, and stays as it is."
        if not old:
            yield from _next_steps(node)
        elif stale or old != f"-> {environment.name}":
            yield from _restart(node)
        for other in environments(node.home):
            if other != environment:
                _wait_for_end(other)
        remove_others(environment)


def files(node: Node, bundle: Bundle) -> dict[Path, File]:
    """What is to be where. Raises Refused."""
    found = {node.command: File(link=os.path.relpath(node.current / "bin/dockershim", node.command.parent))}
    units = node.at("/etc/systemd/system")
    for name in bundle.digests:
        if name.startswith(PREFIXED):
            found[node.prefix / name.removeprefix(PREFIXED)] = File(bundle.read(name))
        elif name == SCRIPT or name.startswith(INSTALLER):
            found[node.home / name] = File(bundle.read(name))
        elif name.startswith(UNITS) and node.init_system == UNITS:
            found[units / name.removeprefix(UNITS)] = _service_file(node, bundle.read(name))
        elif name == OPENRC and node.init_system == OPENRC:
            found[node.at("/etc/init.d/dockershim")] = _service_file(node, bundle.read(name))
    return found


def _service_file(node: Node, content: bytes) -> File:
    return File(content.replace(INSTALLED_BY_HAND.encode(), str(node.command).encode()))


def _compare(wanted: dict[Path, File], before: Manifest) -> list[Path]:
    """The files that were changed after their installation. Raises Refused for files of others."""
    others = {path for path, file in wanted.items() if fingerprint(path) not in ("", file.fingerprint)}
    others = {path for path in others if not before.has(path)}
    foreign = sorted(str(path) for path in others if str(path) not in before.files)
    if foreign:
        raise Refused(f"{', '.join(foreign)}: was not installed by this installer; move it away, then run this again")
    return sorted(others)


def _missing_folders(paths: Iterable[Path]) -> list[Path]:
    """The folders that files need, parents first."""
    return sorted({folder for path in paths for folder in path.parents if not folder.exists()})


def _make_folders(folders: Iterable[Path]) -> None:
    for folder in folders:
        folder.mkdir(exist_ok=True)


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise Refused(f"{folder}: another {SCRIPT} is running") from None
    finally:
        os.close(lock)


def _place(path: Path, file: File) -> None:
    """Put a file, or a link, in the place of what is at the path, whole or not at all."""
    scratch = _scratch(path)
    scratch.unlink(missing_ok=True)
    if file.link:
        scratch.symlink_to(file.link)
    else:
        with scratch.open("xb") as output:
            output.write(file.content)
            output.flush()
            os.fchmod(output.fileno(), file.mode)
            os.fsync(output.fileno())
    scratch.replace(path)


def _scratch(path: Path) -> Path:
    return path.with_name(f".{path.name}.dockershim-new")


def _place_config(node: Node, bundle: Bundle) -> None:
    if not fingerprint(node.config):
        node.config.parent.mkdir(parents=True, exist_ok=True)
        _place(node.config, File(bundle.read(CONFIG)))


def _problem(environment: Path) -> str:
    said = run(str(environment / "bin/python"), "-I", "-c", CHECK).splitlines()
    if not said:
        return ""
    missing = "cannot open shared object" in said[-1] or "Error loading shared library" in said[-1]
    return said[-1] + ("; install that library (libstdc++6 on Debian, libstdc++ elsewhere)" if missing else "")


# -- The service.


def _next_steps(node: Node) -> Iterator[str]:
    if node.runs_systemd:
        node.run("systemctl", "daemon-reload")
    yield "Nothing was started. Next:"
    if node.init_system == OPENRC:
        yield "  rc-update add dockershim && rc-service dockershim start"
        yield f"  {node.command} doctor     # checks this host"
    elif node.init_system == UNITS:
        yield f"  {node.command} setup     # shows what this host lacks for a kubelet; with --yes it does it"
    else:
        yield f"  let your init system start {node.command} serve"
        yield f"  {node.command} doctor     # checks this host"
    yield f"To remove it: {node.home / SCRIPT} --uninstall"


def _restart(node: Node) -> Iterator[str]:
    """Restart the service if it runs. Raises Refused."""
    problem = ""
    if node.runs_systemd:
        problem = node.run("systemctl", "daemon-reload") or node.run("systemctl", "try-restart", SERVICE)
    elif node.runs_openrc:
        problem = node.run("rc-service", "--ifstarted", "dockershim", "restart")
    if problem:
        raise Refused(f"the new version is installed, but its service did not start again: {problem}")
    yield "The service was restarted, if it ran. Pods keep running."


def _stop(node: Node) -> None:
    """Stop the service and take it from the boot. What fails is not there to be stopped."""
    if node.init_system == UNITS:
        if node.runs_systemd:
            node.run("systemctl", "stop", SOCKET, SERVICE)
        # In a chroot too: it removes links.
        node.run("systemctl", "disable", SOCKET, SERVICE)
    elif node.init_system == OPENRC:
        node.run("rc-service", "--ifstarted", "dockershim", "stop")
        node.run("rc-update", "del", "dockershim")


def _wait_for_end(environment: Path) -> int | None:
    """The id of a process that still uses the environment after its service was stopped."""
    deadline = time.monotonic() + _END
    while (user := in_use(environment)) is not None and time.monotonic() < deadline:
        time.sleep(_PAUSE)
    return user


# -- Removal.


def uninstall(node: Node) -> Iterator[str]:
    """Remove what the manifest has, and tell what was done. Raises Refused and OSError."""
    manifest = Manifest.read(node.manifest)
    if manifest is None:
        yield f"dockershim is not installed in {node.prefix}."
        return
    engine = node.at("/etc/docker/daemon.json")
    if engine.exists() and str(node.runc) in engine.read_text(errors="replace"):
        raise Refused(f"{engine}: has {node.runc} as a runtime; first run: dockershim setup --undo")
    with _alone(node.home):
        _stop(node)
        for environment in environments(node.home):
            if (user := _wait_for_end(environment)) is not None:
                raise Refused(f"the process {user} uses {environment}; stop it, then run this again")
        for left in _remove_files(manifest):
            yield f"{left} was changed after its installation, and stays."
        if node.current.is_symlink():
            node.current.unlink()
        remove_all(node.home)
        for path in (node.current, node.config, node.manifest):
            _scratch(path).unlink(missing_ok=True)
        node.manifest.unlink()
        for folder in sorted({node.home, *map(Path, manifest.folders)}, reverse=True):
            # Others may have put something there.
            with contextlib.suppress(OSError):
                folder.rmdir()
    if node.runs_systemd:
        node.run("systemctl", "daemon-reload")
    yield f"dockershim is removed from {node.prefix}. Pods keep running; /etc/dockershim and /var/lib/dockershim stay."


def _remove_files(manifest: Manifest) -> list[str]:
    """Remove the files that are as they were installed, and return the others."""
    left = []
    for name in manifest.files:
        path = Path(name)
        # Of a run that was cut short.
        _scratch(path).unlink(missing_ok=True)
        if manifest.has(path):
            path.unlink()
        elif fingerprint(path):
            left.append(name)
    return left
