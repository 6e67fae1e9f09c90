"""The installer of the tarball in a folder of its own, and the archives that the builders write."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest

from deploy.tarball import archives, environment, installer, wheels
from deploy.tarball.environment import Bundle, Refused
from deploy.tarball.installer import Node
from deploy.tree import BuildError
from tests.unit.deploy.bundles import OTHER_FILES, bundle, shipped, started, wheel

NEXT_FILES = {
    **OTHER_FILES,
    "prefix/bin/dockershim-runc": b"\x7fELF of 2",
    "systemd/dockershim.service": b"ExecStart=/opt/dockershim/bin/dockershim serve --new\n",
    "prefix/share/man/man5/dockershim-config.5": b"new in 2",
}
del NEXT_FILES["prefix/share/man/man1/dockershim.1"]
SYSTEMD, OPENRC = "run/systemd/system", "run/openrc"


class Host:
    """A machine in a folder, and what was run on it."""

    def __init__(self, root: Path, init_system: str) -> None:
        self.commands: list[tuple[str, ...]] = []
        self.fails: tuple[str, ...] = ()
        self.root = root
        for folder in ("etc/systemd/system", "etc/init.d", "usr/local/share", init_system):
            (root / folder).mkdir(parents=True)
        self.node = Node(root / "usr/local", root, self._run)

    def _run(self, *command: str) -> str:
        self.commands.append(command)
        return "it failed" if command == self.fails else ""

    def install(self, shipped: Bundle) -> list[str]:
        return list(installer.install(self.node, shipped))

    def uninstall(self) -> list[str]:
        return list(installer.uninstall(self.node))

    def tree(self) -> dict[str, str]:
        """Everything below the root: fingerprints of files, and folders."""
        return {
            str(path.relative_to(self.root)): installer.fingerprint(path)
            for path in self.root.rglob("*")
            if "site-packages" not in path.parts
        }

    def version(self) -> str:
        """What the installed command prints."""
        done = subprocess.run([self.node.command], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout.split()[0].strip("'")


@pytest.fixture
def tmp_path(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A prefix has at most 64 characters, and pytest's own folders have more where tests are shared among processes.

    In memory, because a disk flushes each file that a rename replaces.
    """
    folder = Path(tempfile.mkdtemp(dir="/dev/shm"))
    yield folder
    monkeypatch.undo()  # of what cuts a change
    shutil.rmtree(folder)


@pytest.fixture(autouse=True)
def works(monkeypatch: pytest.MonkeyPatch) -> None:
    """The real check imports the server, and a sync waits for the whole machine."""
    for name in ("sync", "fsync"):
        monkeypatch.setattr(os, name, lambda *_: None)
    monkeypatch.setattr(installer, "_problem", lambda folder: "" if (folder / "bin/python").exists() else "is missing")


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path / "host", SYSTEMD)


def test_an_installation_starts_nothing_and_says_what_is_next(host: Host) -> None:
    said = "\n".join(host.install(bundle()))
    assert host.commands == [("systemctl", "daemon-reload")]
    assert f"{host.node.command} setup" in said
    assert host.version() == "1.0"
    unit = host.root / "etc/systemd/system/dockershim.service"
    assert unit.read_text() == f"ExecStart={host.node.command} serve\n"
    assert not (host.root / "etc/init.d/dockershim").exists()
    modes = {path: (host.root / path).stat().st_mode & 0o777 for path in ("usr/local/bin/dockershim-runc", str(unit))}
    assert list(modes.values()) == [0o755, 0o644]


def test_a_second_run_changes_and_restarts_nothing(host: Host) -> None:
    host.install(bundle())
    before = {
        path: path.lstat().st_ino for path in host.root.rglob("*") if path.name not in ("manifest.json", "current")
    }
    host.commands.clear()
    host.install(bundle())
    assert {path: path.lstat().st_ino for path in before} == before
    assert host.commands == []


def test_an_upgrade_replaces_all_and_restarts_the_service(host: Host) -> None:
    host.install(bundle())
    host.commands.clear()
    said = host.install(bundle("2.0", NEXT_FILES))
    assert host.version() == "2.0"
    assert [one.name.split("-")[0] for one in environment.environments(host.node.home)] == ["2.0"]
    assert host.commands == [("systemctl", "daemon-reload"), ("systemctl", "try-restart", "dockershim.service")]
    assert "restarted" in said[-1]
    assert (host.node.runc).read_bytes() == b"\x7fELF of 2"
    assert not (host.root / "usr/local/share/man/man1/dockershim.1").exists()


def test_a_restart_that_fails_is_an_error(host: Host) -> None:
    host.install(bundle())
    host.fails = ("systemctl", "try-restart", "dockershim.service")
    with pytest.raises(Refused, match="is installed, but its service did not start again: it failed"):
        host.install(bundle("2.0"))
    assert host.version() == "2.0"


@pytest.mark.parametrize("init_system", [SYSTEMD, OPENRC, "run/nothing"])
def test_removal_leaves_the_configuration_and_what_others_have_put_there(tmp_path: Path, init_system: str) -> None:
    host = Host(tmp_path / "host", init_system)
    before = host.tree()
    host.install(bundle())
    assert (host.root / "etc/init.d/dockershim").exists() is (init_system == OPENRC)
    host.install(bundle("2.0", NEXT_FILES))
    other = host.root / "usr/local/share/man/man5/other.5"
    other.write_text("of another program")
    host.uninstall()
    left = {name for name in host.tree() if name not in before}
    others = {"usr/local/share/man", "usr/local/share/man/man5", "usr/local/share/man/man5/other.5"}
    assert left == {"etc/dockershim", "etc/dockershim/config.toml", *others}
    assert before.items() <= host.tree().items()
    assert host.uninstall() == [f"dockershim is not installed in {host.node.prefix}."]


def test_removal_stops_the_service_before_anything(tmp_path: Path) -> None:
    systemd, openrc = Host(tmp_path / "systemd", SYSTEMD), Host(tmp_path / "openrc", OPENRC)
    for host in (systemd, openrc):
        host.install(bundle())
        host.commands.clear()
        host.uninstall()
    units = ("dockershim.socket", "dockershim.service")
    assert systemd.commands == [
        ("systemctl", "stop", *units),
        ("systemctl", "disable", *units),
        ("systemctl", "daemon-reload"),
    ]
    assert openrc.commands == [
        ("rc-service", "--ifstarted", "dockershim", "stop"),
        ("rc-update", "del", "dockershim"),
    ]


@pytest.mark.parametrize("name", ["etc/systemd/system/dockershim.service", "usr/local/bin/dockershim"])
@pytest.mark.parametrize("what", ["a file", "a link", "a folder"])
def test_a_file_of_others_is_not_replaced(host: Host, name: str, what: str) -> None:
    path = host.root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    match what:
        case "a file":
            path.write_text("of others")
        case "a link":
            path.symlink_to("/dev/null")
        case _:
            path.mkdir()
    with pytest.raises(Refused, match="was not installed by this installer") as refusal:
        host.install(bundle())
    assert str(path) in str(refusal.value)
    assert not host.node.current.is_symlink()
    assert not host.node.manifest.exists()


def test_a_file_of_others_that_is_the_same_is_not_ours(host: Host) -> None:
    """As `dockershim setup` may have put dockershim-runc there."""
    host.node.runc.parent.mkdir()
    host.node.runc.write_bytes(OTHER_FILES["prefix/bin/dockershim-runc"])
    host.install(bundle())
    host.uninstall()
    assert host.node.runc.exists()


def test_a_file_that_was_changed_stays(host: Host) -> None:
    host.install(bundle())
    unit = host.root / "etc/systemd/system/dockershim.service"
    unit.write_text("mine")
    assert f"{unit} was changed after its installation, and stays as it is." in host.install(bundle("2.0", NEXT_FILES))
    assert f"{unit} was changed after its installation, and stays." in host.uninstall()
    assert unit.read_text() == "mine"


def test_a_configuration_that_was_changed_stays(host: Host) -> None:
    host.install(bundle())
    config = host.root / "etc/dockershim/config.toml"
    config.write_text("a = 2")
    host.install(bundle("2.0", NEXT_FILES))
    host.uninstall()
    assert config.read_text() == "a = 2"


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"files": [], "folders": []}', '{"files": {"/x": 1}, "folders": []}']
)
def test_a_damaged_manifest_removes_nothing(host: Host, content: str) -> None:
    host.install(bundle())
    host.node.manifest.write_text(content)
    before = host.tree()
    for action in (host.uninstall, lambda: host.install(bundle("2.0"))):
        with pytest.raises(Refused, match=r"manifest.json: is damaged"):
            action()
    assert host.tree() == before


def test_a_manifest_cannot_remove_what_has_another_content(host: Host) -> None:
    host.install(bundle())
    mine = host.root / "mine"
    mine.write_text("mine")
    table = json.loads(host.node.manifest.read_text())
    table["files"][str(mine)] = ["0" * 64, "", "not a file"]
    table["folders"] += [str(host.root), str(host.root / "etc")]
    host.node.manifest.write_text(json.dumps(table))
    host.uninstall()
    assert mine.read_text() == "mine"


def test_a_runtime_that_the_engine_names_is_not_removed(host: Host) -> None:
    host.install(bundle())
    engine = host.root / "etc/docker/daemon.json"
    engine.parent.mkdir()
    engine.write_text(json.dumps({"runtimes": {"dockershim-runc": {"path": str(host.node.runc)}}}))
    with pytest.raises(Refused, match="dockershim setup --undo"):
        host.uninstall()
    assert host.version() == "1.0"


def test_a_package_and_a_tarball_are_not_mixed(host: Host) -> None:
    package = host.root / "usr/lib/dockershim/pyvenv.cfg"
    package.parent.mkdir(parents=True)
    package.touch()
    with pytest.raises(Refused, match="remove the package first"):
        host.install(bundle())


def test_two_at_once_are_refused(host: Host) -> None:
    host.install(bundle())
    with installer._alone(host.node.home):
        for action in (host.uninstall, lambda: host.install(bundle("2.0"))):
            with pytest.raises(Refused, match=r"another install.sh is running"):
                action()


def test_an_environment_that_is_used_is_not_removed(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    host.install(bundle())
    monkeypatch.setattr(installer, "_END", 0.0)
    (used,) = environment.environments(host.node.home)
    with started(used) as server:
        host.install(bundle("2.0"))
        assert used in environment.environments(host.node.home)
        with pytest.raises(Refused, match=f"the process {server.pid} uses {used}"):
            host.uninstall()
        server.communicate()
    host.install(bundle("2.0"))
    assert used not in environment.environments(host.node.home)


class Cut(BaseException):
    """The power went off."""


@pytest.fixture
def cut(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Makes the change of the disk with a number, and all after it, impossible."""
    left = [10**9]

    def counted(real: Callable[..., object]) -> Callable[..., object]:
        def change(*arguments: object, **options: object) -> object:
            if left[0] <= 0:
                raise Cut
            left[0] -= 1
            return real(*arguments, **options)

        return change

    for name in ("replace", "rename", "mkdir", "rmdir", "unlink", "symlink_to"):
        monkeypatch.setattr(Path, name, counted(getattr(Path, name)))
    monkeypatch.setattr(shutil, "rmtree", counted(shutil.rmtree))

    def set_left(number: int) -> None:
        left[0] = number

    return set_left


@pytest.mark.slow
def test_a_cut_at_any_step_leaves_one_version_that_works(tmp_path: Path, cut: Callable[[int], None]) -> None:
    for steps in count():
        cut(10**9)
        host = Host(tmp_path / str(steps), SYSTEMD)
        empty = host.tree()
        host.install(bundle())
        cut(steps)
        try:
            host.install(bundle("2.0", NEXT_FILES))
            break
        except Cut:
            cut(10**9)
        used = host.node.current.resolve()
        assert (used / "bin/dockershim").exists()
        assert (used / "bin/python").exists()
        if steps % 2:
            host.install(bundle("2.0", NEXT_FILES))
            assert host.node.runc.read_bytes() == b"\x7fELF of 2"
        host.uninstall()
        assert set(host.tree()) - set(empty) == {"etc/dockershim", "etc/dockershim/config.toml"}
    assert steps > 20


@pytest.mark.slow
def test_a_first_installation_that_is_cut_is_removed_or_finished(tmp_path: Path, cut: Callable[[int], None]) -> None:
    for steps in count():
        cut(10**9)
        host = Host(tmp_path / str(steps), SYSTEMD)
        empty = host.tree()
        cut(steps)
        try:
            host.install(bundle())
            break
        except Cut:
            cut(10**9)
        if steps % 2 or not host.node.manifest.exists():
            host.install(bundle())
        host.uninstall()
        left = set(host.tree()) - set(empty) - {"etc/dockershim", "etc/dockershim/config.toml"}
        # An empty folder that was made before the manifest was there.
        assert left <= {"usr/local/lib"}
    assert steps > 20


@pytest.mark.slow
def test_a_removal_that_is_cut_is_finished_by_the_next_one(tmp_path: Path, cut: Callable[[int], None]) -> None:
    for steps in count():
        cut(10**9)
        host = Host(tmp_path / str(steps), SYSTEMD)
        empty = host.tree()
        host.install(bundle())
        cut(steps)
        try:
            host.uninstall()
            break
        except Cut:
            cut(10**9)
        host.uninstall()
        left = {name for name in set(host.tree()) - set(empty) if not name.startswith("etc/dockershim")}
        # The manifest is gone before the folders are.
        assert {name: one for name, one in host.tree().items() if name in left and one != "not a file"} == {}
    assert steps > 10


# -- The environment.


def test_a_wheel_that_is_damaged_is_refused(host: Host) -> None:
    files = shipped("1.0")
    for path in [path for path in files if path.endswith(".whl")]:
        for content in (files[path][:-1], wheel("1.1"), b""):
            broken = Bundle.of({**files, path: content}.__getitem__)
            with pytest.raises(Refused, match=f"{path}: is damaged"):
                host.install(broken)
        del files[path]
    with pytest.raises(Refused, match="cannot be read"):
        host.install(Bundle.of(files.__getitem__))
    assert environment.environments(host.node.home) == []
    host.uninstall()


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b'{"version": "1"}', b"\xff"])
def test_a_damaged_table_of_contents_is_refused(content: bytes) -> None:
    with pytest.raises(Refused, match=r"contents.json: cannot be read"):
        Bundle.of({environment.CONTENTS: content}.__getitem__)


def test_a_python_without_wheels_is_named(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    known, of_known = environment.ABI, bundle()
    monkeypatch.setattr(environment, "ABI", "cpython-313t-x86_64-linux-gnu")
    with pytest.raises(Refused, match=f"is cpython-313t-x86_64-linux-gnu, but there are libraries only for {known}"):
        host.install(of_known)


def test_an_environment_that_does_not_work_changes_nothing(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    host.install(bundle())
    monkeypatch.setattr(installer, "_problem", lambda folder: "libstdc++.so.6")
    with pytest.raises(Refused, match=r"do not work here: libstdc\+\+.so.6"):
        host.install(bundle("2.0"))
    assert host.version() == "1.0"
    assert len(environment.environments(host.node.home)) == 1


def test_an_environment_that_was_damaged_is_made_again(host: Host) -> None:
    host.install(bundle())
    (host.node.current / "bin/python").unlink()
    host.install(bundle())
    assert host.version() == "1.0"


@pytest.mark.parametrize("umask", [0o000, 0o077])
def test_modes_do_not_depend_on_the_umask(host: Host, umask: int) -> None:
    before = os.umask(umask)
    try:
        host.install(bundle())
    finally:
        os.umask(before)
    modes = {path.stat().st_mode & 0o777 for path in host.node.current.resolve().rglob("*") if path.is_file()}
    assert modes <= {0o755, 0o644}


# -- The prefix.


@pytest.mark.parametrize(
    ("prefix", "said"),
    [
        ("opt", "must be an absolute path"),
        ("", "must be an absolute path"),
        ("/opt/my programs", "must have only letters"),
        ("/opt/a\nb", "must have only letters"),
        ("/opt/$(id)", "must have only letters"),
        ("/opt/ä", "must have only letters"),
        ("/opt/%s", "must have only letters"),
        ("/", "must have only letters"),
        ("//", "must have only letters"),
        ("/opt/../..", "must have only letters"),
        ("/opt/" + "x" * 64, "must not be longer than 64 characters"),
        ("/etc/passwd/x", "/etc/passwd is not a folder"),
        ("/tmp/x", "others than root can write to /tmp"),
    ],
)
def test_a_prefix_that_cannot_be_used_is_refused_by_its_name(prefix: str, said: str) -> None:
    with pytest.raises(Refused, match=said) as refusal:
        installer.check_prefix(prefix)
    assert "--prefix" in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("prefix", "meant"), [("/opt/x", "/opt/x"), ("/opt//./y/../x/", "/opt/x"), ("/proc/self/root/opt/x", "/opt/x")]
)
def test_a_prefix_is_where_its_links_lead(prefix: str, meant: str) -> None:
    assert installer.check_prefix(prefix) == Path(meant)


def test_the_prefix_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    monkeypatch.setattr(stat, "S_IWOTH", 0)
    tmp_path.chmod(0o755)
    os.chown(tmp_path, 54321, -1)
    with pytest.raises(Refused, match=f"others than root can write to {tmp_path}"):
        installer.check_prefix(str(tmp_path))


# -- The archives.


def test_archives_depend_on_names_and_contents_alone(tmp_path: Path) -> None:
    files = {"b/script": b"#!/bin/sh\n", "a": b"x" * 1000}

    def written(order: Iterator[str], name: str, umask: int) -> tuple[bytes, bytes]:
        content = {one: files[one] for one in order}
        before = os.umask(umask)
        try:
            archives.write_tar(tmp_path / f"{name}.tar.gz", content, 1_700_000_000)
            archives.write_zip(tmp_path / name, b"#!/bin/sh\n", content, 1_700_000_000)
        finally:
            os.umask(before)
        return (tmp_path / f"{name}.tar.gz").read_bytes(), (tmp_path / name).read_bytes()

    assert written(iter(files), "one", 0o022) == written(reversed(files), "two", 0o077)


@pytest.mark.parametrize("name", ["x-1.data/scripts/x", "/etc/x", "../x", "a/../../x", "x.pth"])
def test_a_wheel_that_has_to_be_more_than_unpacked_is_not_built_in(tmp_path: Path, name: str) -> None:
    for inside in (name, "x/__init__.py"):
        with zipfile.ZipFile(tmp_path / "x.whl", "w") as archive:
            archive.writestr(inside, "")
        if inside == name:
            with pytest.raises(BuildError, match="needs an installer"):
                wheels.check(tmp_path / "x.whl")
    wheels.check(tmp_path / "x.whl")


def test_a_kind_has_the_name_that_its_python_gives_extension_modules() -> None:
    assert wheels.Kind("arm64", "3.14", wheels.MUSL).abi == "cpython-314-aarch64-linux-musl"
    assert environment.ABI in {
        wheels.Kind(architecture, python, libc).abi
        for architecture in ("amd64", "arm64")
        for python in wheels.PYTHONS
        for libc in (wheels.GLIBC, wheels.MUSL)
    }
