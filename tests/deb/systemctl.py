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
PID = Path("/run/dockershim.service.pid")
ASKED = Path("/run/systemctl.asked")
SERVICE, SOCKET = "dockershim.service", "dockershim.socket"


def running() -> int | None:
    """The pid of the service's process, or None."""
    try:
        pid = int(PID.read_text())
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


def start() -> None:
    # systemd.unit(5): in the order of their names, whichever folder they are in.
    folders = (UNITS / f"{SERVICE}.d", NODES_UNITS / f"{SERVICE}.d")
    drop_ins = sorted((file for folder in folders for file in folder.glob("*.conf")), key=lambda file: file.name)
    command = setting([UNITS / SERVICE, *drop_ins], "ExecStart=")
    socket = setting([UNITS / SOCKET], "ListenStream=")
    with Path("/run/dockershim.log").open("ab") as log:
        process = subprocess.Popen(
            ["systemd-socket-activate", f"--listen={socket}", *command.split()],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    PID.write_text(str(process.pid))


def stop() -> None:
    pid = running()
    if pid:
        os.kill(pid, signal.SIGTERM)
    while running():
        time.sleep(0.05)
    PID.unlink(missing_ok=True)


verb, *units = [word for word in sys.argv[1:] if not word.startswith("-")]
with ASKED.open("a") as asked:
    asked.write(" ".join([verb, *units]) + "\n")
if verb in ("enable", "disable", "is-enabled", "preset"):
    words = [word for word in sys.argv[1:] if word != "--now"]
    code = subprocess.call(["/usr/bin/systemctl.real", "--root=/", *words])
    if code or "--now" not in sys.argv:
        sys.exit(code)
    verb = "start"
if verb == "is-active":
    sys.exit(0 if SERVICE in units and running() else 3)
if verb in ("stop", "try-restart") and SERVICE in units and running():
    stop()
    if verb == "try-restart":
        start()
if verb in ("start", "restart") and SERVICE in units:
    stop()
    start()
