"""The single file: where it unpacks, what it refuses, and the script that looks for a Python."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from deploy.single_file import launcher
from deploy.tarball import archives, environment
from deploy.tarball.__main__ import RUNTIME, main_module, modules, start_script
from deploy.tarball.environment import Refused
from tests.unit.deploy.bundles import bundle, shipped, started


@pytest.fixture(autouse=True)
def no_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("sync", "fsync"):
        monkeypatch.setattr(os, name, lambda *_: None)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "dockershim"


def provide(root: Path, version: str = "1.0") -> Path:
    return launcher.provide(bundle(version), root, root / "program")


def prints(environment: Path, program: str) -> str:
    return subprocess.run([environment / "bin" / program], capture_output=True, text=True, check=True).stdout


def test_it_unpacks_once_below_its_root(root: Path) -> None:
    made = provide(root)
    assert made.parent == root / "program"
    assert root.stat().st_mode & 0o777 == 0o700
    before = made.stat().st_ino
    assert provide(root) == made
    assert made.stat().st_ino == before
    assert prints(made, "cri-dockerd") == f"1.0 ['{made}/bin/cri-dockerd']\n"


def test_an_older_one_goes_when_no_process_uses_it(root: Path) -> None:
    old = provide(root)
    with started(old) as server:
        new = provide(root, "2.0")
        assert set(environment.environments(root / "program")) == {old, new}
        server.communicate()
    (root / "program/mine").mkdir()
    provide(root, "2.0")
    assert {path.name for path in (root / "program").iterdir()} == {new.name, "mine", ".lock"}


def test_what_is_damaged_is_made_again(root: Path) -> None:
    made = provide(root)
    (made / "bin/python").unlink()
    assert prints(provide(root), "dockershim").startswith("1.0")


def test_of_first_starts_at_the_same_time_one_unpacks(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unpacked = []
    make = environment._make

    def counted(*arguments: Any) -> None:
        unpacked.append(1)
        make(*arguments)

    monkeypatch.setattr(environment, "_make", counted)
    threads = [threading.Thread(target=provide, args=(root,)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert unpacked == [1]


def link(path: Path) -> None:
    path.with_name("elsewhere").mkdir()
    path.symlink_to("elsewhere")


def folder_with(mode: int) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        path.mkdir()
        path.chmod(mode)

    return make


def of_another_user(path: Path) -> None:
    path.mkdir()
    os.chown(path, 12345, 0)


@pytest.mark.parametrize("where", ["root", "program", "environment"])
@pytest.mark.parametrize(
    ("make", "said"),
    [
        pytest.param(link, "is a symbolic link", id="link"),
        pytest.param(folder_with(0o777), r"others can write to it \(mode 0777\): chmod go-w", id="open"),
        pytest.param(folder_with(0o1777), "others can write to it", id="sticky"),
        pytest.param(folder_with(0o770), "others can write to it", id="group"),
        pytest.param(of_another_user, "belongs to the user 12345, must belong to root: chown root", id="owner"),
        pytest.param(Path.touch, "is not a folder", id="file"),
    ],
)
def test_a_place_that_others_control_is_refused(
    root: Path, monkeypatch: pytest.MonkeyPatch, where: str, make: Callable[[Path], None], said: str
) -> None:
    made = provide(root)
    path = {"root": root, "program": root / "program", "environment": made}[where]
    kept = path.rename(path.with_name("kept"))
    make(path)
    if where == "environment":
        # It is not made again, as it seems to work.
        monkeypatch.setattr(launcher, "_problem", lambda folder: "")
    with pytest.raises(Refused, match=f"{path}: {said}"):
        provide(root)
    assert not path.is_dir() or list(path.iterdir()) == []
    assert kept.exists()


def test_only_root_unpacks(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(Refused, match=f"must be run as root: it unpacks its files in {root}"):
        provide(root)
    assert not root.exists()


@pytest.mark.slow
def test_the_file_keeps_its_name_and_arguments(tmp_path: Path, root: Path) -> None:
    """From the first start on, by whatever path it is called."""
    runtime = modules((*RUNTIME, "single_file/__init__.py", "single_file/launcher.py"))
    source = runtime["deploy/single_file/launcher.py"].decode().replace("/var/lib/dockershim", str(root))
    files = {
        **shipped("1.0"),
        **runtime,
        "deploy/single_file/launcher.py": source.encode(),
        "__main__.py": main_module("deploy.single_file.launcher"),
        launcher.VERSION_FILE: b"the version\n",
    }
    program = tmp_path / "bin/cri-dockerd"
    program.parent.mkdir()
    archives.write_zip(program, start_script("cri-dockerd", '"$here/${0##*/}"'), files, 1_700_000_000)
    (program.parent / "dockershim").symlink_to("cri-dockerd")
    environ = {"PATH": f"{program.parent}:{Path(sys.executable).parent}:/usr/bin:/bin", "PYTHON": sys.executable}

    def run(*command: str | Path, cwd: Path = tmp_path) -> str:
        done = subprocess.run(command, cwd=cwd, env=environ, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert run(program, "--version") == "the version\n"
    assert not root.exists()
    first = run(program, "--a b", "c")
    (made,) = environment.environments(root / "program")
    assert first == f"1.0 ['{made}/bin/cri-dockerd', '--a b', 'c']\n"
    assert run("cri-dockerd", "--a b", "c") == first
    assert run("sh", "cri-dockerd", "--a b", "c", cwd=program.parent) == first
    assert run("dockershim") == f"1.0 ['{made}/bin/dockershim']\n"


# -- The script that looks for a Python.


def python(version: str) -> str:
    """A Python of which only the version is real: it prints the arguments of what it is started for."""
    fits = 0 if version in ("3.11", "3.12", "3.13", "3.14") else 1
    return (
        f'#!/bin/sh\nif [ "$4" = "" ]; then exit 1; fi\nif [ "$3" = -c ]; then exit {fits}; fi\necho "{version} $*"\n'
    )


@pytest.mark.parametrize(
    ("pythons", "chosen"),
    [
        pytest.param({"python3": "3.11"}, "3.11", id="the distribution's"),
        pytest.param({"python3": "3.11", "python3.13": "3.13"}, "3.11", id="the distribution's first"),
        pytest.param({"python3": "3.9", "python3.11": "3.11", "python3.12": "3.12"}, "3.12", id="the newest"),
        pytest.param({"python3": "3.15", "python3.14": "3.14"}, "3.14", id="one that is too new"),
        pytest.param({"python3": "3.9"}, "", id="none that fits"),
        pytest.param({}, "", id="none"),
    ],
)
def test_the_script_finds_a_python(tmp_path: Path, pythons: dict[str, str], chosen: str) -> None:
    for name, version in pythons.items():
        (tmp_path / name).write_text(python(version))
        (tmp_path / name).chmod(0o755)
    script = tmp_path / "my file\n.sh"
    script.write_bytes(start_script("install.sh", '"$here/installer"'))
    done = subprocess.run(["/bin/sh", script, "a b"], env={"PATH": str(tmp_path)}, capture_output=True, text=True)
    if chosen:
        assert done.stdout == f"{chosen} -I -S -B {tmp_path}/installer a b\n", done.stderr
    else:
        assert done.returncode == 1
        assert "install.sh: there is no Python 3.11 to 3.14" in done.stderr


def test_a_python_that_is_chosen_and_does_not_fit_is_named(tmp_path: Path) -> None:
    script = tmp_path / "install.sh"
    script.write_bytes(start_script("install.sh", '"$here/installer"'))
    done = subprocess.run(
        ["sh", script], env={"PATH": "/usr/bin:/bin", "PYTHON": "/bin/false"}, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (1, "install.sh: PYTHON=/bin/false: must be a Python 3.11 to 3.14\n")
