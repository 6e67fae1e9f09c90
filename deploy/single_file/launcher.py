"""What the single file does: it unpacks itself below /var/lib/dockershim once, and becomes the server from there.

Below /var/lib/dockershim and not in /tmp, which is emptied under running servers, and where others can write: who
controls these files is root. So folders that others own or can write to, and links, are refused.
"""

from __future__ import annotations

import contextlib
import os
import stat
import sys
import zipfile
from pathlib import Path, PurePath

from deploy.tarball.environment import PROGRAMS, Bundle, Refused, remove_others
from deploy.tarball.environment import provide as environment_of

ROOT = Path("/var/lib/dockershim")
FOLDER = ROOT / "program"
#: In the file: what ``cri-dockerd --version`` prints.
VERSION_FILE = "version.txt"


def main() -> int:
    """Become the server, or return the exit code of a failure."""
    program = PurePath(sys.argv[0]).name
    if program not in PROGRAMS:
        program = PROGRAMS[0]
    try:
        with zipfile.ZipFile(sys.path[0]) as archive:
            # Tools ask for it, also as other users, before anything is served.
            if program == "cri-dockerd" and sys.argv[1:] == ["--version"]:
                sys.stdout.write(archive.read(VERSION_FILE).decode())
                return 0
            environment = provide(Bundle.of(archive.read), ROOT, FOLDER)
        # A script: the process has its name, by which tools look for it, and takes it for that of the command.
        command = str(environment / "bin" / program)
        os.execv(command, [command, *sys.argv[1:]])
    except (Refused, OSError, zipfile.BadZipFile) as error:
        sys.stderr.write(f"{program}: {error}\n")
        return 1


def provide(bundle: Bundle, root: Path, folder: Path) -> Path:
    """The environment in ``folder``, which is in ``root``. Raises Refused and OSError."""
    if os.geteuid():
        raise Refused(f"must be run as root: it unpacks its files in {folder}")
    for one, mode in ((root, 0o700), (folder, 0o755)):
        with contextlib.suppress(FileExistsError):
            one.mkdir(mode=mode, parents=True)
        check(one)
    environment = environment_of(bundle, folder, _problem)
    check(environment)
    remove_others(environment)
    return environment


def _problem(environment: Path) -> str:
    return "" if (environment / "bin/python").exists() else f"{environment}/bin/python does not exist"


def check(folder: Path) -> None:
    """Raise Refused if anyone but this user could change what is in a folder."""
    found = folder.lstat()
    if stat.S_ISLNK(found.st_mode):
        raise Refused(f"{folder}: is a symbolic link; remove it")
    if not stat.S_ISDIR(found.st_mode):
        raise Refused(f"{folder}: is not a folder; remove it")
    if found.st_uid != os.geteuid():
        raise Refused(f"{folder}: belongs to the user {found.st_uid}, must belong to root: chown root {folder}")
    if found.st_mode & 0o022:
        raise Refused(f"{folder}: others can write to it (mode {stat.S_IMODE(found.st_mode):04o}): chmod go-w {folder}")
