"""What `make install` and `make run` install, also after one was cut short; the interpreter is a fake."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

#: Seconds; a machine may be busy with others.
LONG = 15
REPOSITORY = Path(__file__).parents[3]

#: ``python -m venv DIR`` makes DIR in two steps, ``python -m pip install -q -e WHAT`` takes two steps too. Each
#: step and each program is a line of ``log``; at the step that is the text of ``hang`` it waits for its end.
FAKE = f"""#!{sys.executable}
import os, pathlib, shutil, sys, time

here = pathlib.Path({{folder!r}})

def step(name):
    with (here / "log").open("a") as log:
        log.write(name + "\\n")
    if (here / "hang").exists() and (here / "hang").read_text() == name:
        (here / "hang").rename(here / "hanging")
        time.sleep(60)

match sys.argv[1:]:
    case ["-c", _]:
        pass
    case ["-m", "venv", *options, folder]:
        if "--clear" in options:
            shutil.rmtree(folder, ignore_errors=True)
        python = pathlib.Path(folder, "bin", "python")
        python.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(here / "python3", python)
        step("venv without pip")
        pathlib.Path(folder, "pip").touch()
        step("venv")
    case ["-m", "pip", "install", "-q", "-e", what]:
        venv = pathlib.Path(sys.argv[0]).parents[1]
        if not (venv / "pip").exists():
            sys.exit("No module named pip")
        if (here / "offline").exists():
            sys.exit("no network")
        if (venv / "metadata").exists() and not (venv / "files").exists():
            sys.exit("half installed")
        (venv / "metadata").touch()
        step(f"half of {{{{what}}}}")
        (venv / "files").touch()
        step(f"all of {{{{what}}}}")
    case ["-m", "deploy.run"]:
        step("serves")
    case arguments:
        sys.exit(f"not foreseen: {{{{arguments}}}}")
"""


def outside_of_make() -> dict[str, str]:
    """The environment without what the make that runs the tests tells one below it."""
    return {key: value for key, value in os.environ.items() if not key.startswith(("MAKE", "MFLAGS"))}


class Checkout:
    """The repository's makefiles and what they look at."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("Makefile", "deploy/run.mk", "pyproject.toml", "hatch_build.py"):
            (folder / name).parent.mkdir(exist_ok=True)
            shutil.copy(REPOSITORY / name, folder / name)
        for proto in (REPOSITORY / "dockershim/api").rglob("*.proto"):
            copied = folder / proto.relative_to(REPOSITORY)
            copied.parent.mkdir(parents=True)
            copied.touch()
        python = folder / "python3"
        python.write_text(FAKE.format(folder=str(folder)).replace("{{", "{").replace("}}", "}"))
        python.chmod(0o755)

    def begin(self, *targets: str) -> subprocess.Popen[str]:
        # Where the tests run in the background, a shell has it ignored, and so would all that they start. Not by a
        # preexec_fn: that forks, and in a process that has used gRPC the child may end by gRPC's handlers of a fork.
        command = ["env", "--default-signal=INT", "make", f"PYTHON={self.folder}/python3", *targets]
        return subprocess.Popen(
            command,
            cwd=self.folder,
            env=outside_of_make(),
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def make(self, *targets: str) -> list[str]:
        """What was done for it, which succeeds."""
        self._forget()
        running = self.begin(*targets)
        said, _ = running.communicate(timeout=LONG)
        assert running.returncode == 0, said
        return self.done()

    def cut_short(self, step: str, by: signal.Signals, *targets: str) -> None:
        """All processes of a make get a signal at a step."""
        (self.folder / "hang").write_text(step)
        running = self.begin(*targets)
        self.wait_for("hanging")
        os.killpg(running.pid, by)
        running.communicate(timeout=LONG)
        assert running.returncode != 0
        (self.folder / "hanging").unlink()

    def wait_for(self, name: str) -> None:
        end = time.monotonic() + LONG
        while not (self.folder / name).exists():
            assert time.monotonic() < end, f"{name} does not come"
            time.sleep(0.01)

    def done(self) -> list[str]:
        log = self.folder / "log"
        return log.read_text().splitlines() if log.exists() else []

    def _forget(self) -> None:
        (self.folder / "log").unlink(missing_ok=True)


NEW = ["venv without pip", "venv"]
SERVER = ["half of .", "all of ."]
TOOLS = ["half of .[dev]", "all of .[dev]"]


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


def test_the_server_alone_is_installed_for_its_users_and_the_tools_for_developers(checkout: Checkout) -> None:
    assert checkout.make("run") == [*NEW, *SERVER, "serves"]
    assert checkout.make("run") == ["serves"]
    assert checkout.make("install") == TOOLS
    assert checkout.make("run", "install") == ["serves"]


def test_who_has_the_tools_has_the_server(checkout: Checkout) -> None:
    assert checkout.make("install") == [*NEW, *TOOLS]
    assert checkout.make("run") == ["serves"]


def test_a_change_of_what_is_needed_is_brought_to_both(checkout: Checkout) -> None:
    checkout.make("install")
    later = time.time() + 1
    os.utime(checkout.folder / "pyproject.toml", (later, later))
    assert checkout.make("run")[:2] == SERVER
    assert checkout.make("install") == TOOLS


@pytest.mark.parametrize("by", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("step", ["venv without pip", "venv", "half of .[dev]", "all of .[dev]"])
def test_an_install_that_was_cut_short_is_made_anew(checkout: Checkout, step: str, by: signal.Signals) -> None:
    checkout.cut_short(step, by, "install")
    assert checkout.make("install") == [*NEW, *TOOLS]


def test_tools_that_were_cut_short_do_not_keep_the_server_from_running(checkout: Checkout) -> None:
    checkout.make("run")
    checkout.cut_short("half of .[dev]", signal.SIGKILL, "install")
    assert checkout.make("run") == [*NEW, *SERVER, "serves"]
    assert checkout.make("install") == TOOLS


def test_an_install_that_fails_keeps_what_works(checkout: Checkout) -> None:
    checkout.make("install")
    later = time.time() + 1
    os.utime(checkout.folder / "pyproject.toml", (later, later))
    (checkout.folder / "offline").touch()
    running = checkout.begin("install")
    assert "no network" in running.communicate(timeout=LONG)[0]
    assert running.returncode != 0
    (checkout.folder / "offline").unlink()
    assert checkout.make("install") == TOOLS


def test_two_at_once_do_not_disturb_each_other(checkout: Checkout) -> None:
    (checkout.folder / "hang").write_text("half of .")
    first = checkout.begin("install-server")
    checkout.wait_for("hanging")
    second = checkout.begin("install-server")
    with pytest.raises(subprocess.TimeoutExpired):
        second.communicate(timeout=0.3)
    os.killpg(first.pid, signal.SIGKILL)
    first.communicate()
    said, _ = second.communicate(timeout=LONG)
    assert second.returncode == 0, said
    assert checkout.done() == [*NEW, "half of .", *NEW, *SERVER]


def test_whatever_runs_the_unit_tests_brings_the_programs_that_they_run() -> None:
    rules = re.findall(r"^([\w-]+):([^#\n]*)(?:##.*)?\n((?:\t.*\n)+)", (REPOSITORY / "Makefile").read_text(), re.M)
    runs = {
        target: needs.split() for target, needs, recipe in rules if "$(PYTEST)" in recipe and "tests/unit" in recipe
    }
    assert set(runs) == {"test-unit", "test-fast"}
    assert [target for target, needs in runs.items() if "assemblers" not in needs] == []


def test_help_begins_with_what_a_user_wants() -> None:
    command = ["make", "help"]
    shown = subprocess.run(
        command, cwd=REPOSITORY, env=outside_of_make(), capture_output=True, text=True, check=True
    ).stdout
    sections = [line for line in shown.splitlines() if line and not line.startswith(" ")]
    assert sections == ["Use", "Develop", "Test", "Measure", "Release"]
    assert shown.startswith("Use\n  run ")
    files = [REPOSITORY / "Makefile", *REPOSITORY.glob("*/*.mk"), *REPOSITORY.glob("*/*/*.mk")]
    targets = {
        name for file in files for name in re.findall(r"^([a-zA-Z0-9_-]+):.*## ", file.read_text(), re.MULTILINE)
    }
    assert set(re.findall(r"^  (\S+) ", shown, re.MULTILINE)) == targets
