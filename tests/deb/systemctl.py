#!/usr/bin/python3
"""systemctl of a chroot, where no systemd runs: it starts what the installed units say, and notes what it is asked for.

enable, disable and the like are done by the real one, which needs no systemd for them.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

UNITS = Path("/usr/lib/systemd/system")
NODES_UNITS = Path("/etc/systemd/system")
ASKED = Path("/run/systemctl.asked")
SOCKETS = {"dockershim.service": "dockershim.socket", "cri-docker.service": "cri-docker.socket"}


def pid_file(service: str) -> Path:
    """Where the pid of a service's process is."""
    return Path("/run", f"{service}.pid")


def unit(name: str) -> Path:
    """The file of a unit: the node's own ones win. An alias is a link."""
    return next((folder / name for folder in (NODES_UNITS, UNITS) if (folder / name).exists()), UNITS / name).resolve()


def running(service: str) -> int | None:
    """The pid of the service's process, or None."""
    try:
        pid = int(pid_file(service).read_text())
        os.kill(pid, 0)
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text() else pid


def setting(files: list[Path], name: str) -> str:
    """The value that the last of the files gives."""
    values = [
        line.split("=", 1)[1] for file in files for line in file.read_text().splitlines() if line.startswith(name)
    ]
    return values[-1].strip()


def start(service: str) -> None:
    """Start a service when its socket gets a connection."""
    # systemd.unit(5): in the order of their names, whichever folder they are in.
    folders = (UNITS / f"{service}.d", NODES_UNITS / f"{service}.d")
    drop_ins = sorted((file for folder in folders for file in folder.glob("*.conf")), key=lambda file: file.name)
    command = setting([unit(service), *drop_ins], "ExecStart=")
    socket = setting([unit(SOCKETS[service])], "ListenStream=")
    with Path("/run/dockershim.log").open("ab") as log:
        process = subprocess.Popen(
            ["systemd-socket-activate", f"--listen={socket}", *command.split()],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    pid_file(service).write_text(str(process.pid))


def stop(service: str) -> None:
    """Stop a service, if it runs."""
    pid = running(service)
    if pid:
        os.kill(pid, signal.SIGTERM)
    while running(service):
        time.sleep(0.05)
    pid_file(service).unlink(missing_ok=True)


verb, *units = [word for word in sys.argv[1:] if not word.startswith("-")]
with ASKED.open("a") as asked:
    asked.write(" ".join([verb, *units]) + "\n")
if verb in ("enable", "disable", "is-enabled", "preset"):
    words = [word for word in sys.argv[1:] if word != "--now"]
    code = subprocess.call(["/usr/bin/systemctl.real", "--root=/", *words])
    if code or "--now" not in sys.argv:
        sys.exit(code)
    verb = "stop" if verb == "disable" else "start"
services = [name for name in (unit(name).name for name in units) if name in SOCKETS]
if verb == "is-active":
    sys.exit(0 if any(running(service) for service in services) else 3)
for service in services:
    if verb == "stop" or (verb == "try-restart" and running(service)):
        stop(service)
        if verb == "try-restart":
            start(service)
    elif verb in ("start", "restart"):
        stop(service)
        start(service)
