"""The table of distributions, and what the builders make of it."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from deploy import targets, tree
from deploy.deb import __main__ as deb
from deploy.rpm import __main__ as rpm
from deploy.targets import TARGETS
from dockershim.server import config, cri_dockerd

ROOT = Path(__file__).parents[3]
CLASSIFIERS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["classifiers"]
MODULE = ROOT / "deploy/rpm/selinux"
DEBIAN = TARGETS["bookworm"]


@pytest.mark.parametrize("target", TARGETS.values(), ids=lambda target: target.name)
def test_a_row_fits_the_server_and_its_wheels(target: targets.Target) -> None:
    assert target.kind in ("deb", "rpm")
    assert f"Programming Language :: Python :: {target.python}" in CLASSIFIERS
    numbers = [[int(number) for number in one.split(".")] for one in (tree.WHEELS_GLIBC, target.glibc)]
    assert numbers == sorted(numbers)
    others = [one for one in TARGETS.values() if one != target]
    assert target.release not in [one.release for one in others]


def test_the_document_has_the_table() -> None:
    text = targets.DOCUMENT.read_text()
    assert text == targets.with_matrix(text), "run make tables"


@pytest.mark.parametrize("text", ["", targets.BEGIN, f"{targets.END}{targets.BEGIN}"])
def test_a_document_without_both_marks_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="marks"):
        targets.with_matrix(text)


@pytest.mark.parametrize("main", [deb.main, rpm.main])
@pytest.mark.parametrize("name", ["el8", "", "../../etc", "$(reboot)"])
def test_an_unknown_target_is_refused_with_all_that_are_known(
    main: Callable[[], int], name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["build", "--target", name])
    with pytest.raises(SystemExit):
        main()
    said = capsys.readouterr().err
    kind = "deb" if main is deb.main else "rpm"
    assert f"invalid choice: '{name}'" in said
    assert all(known in said for known in targets.of_kind(kind))


@pytest.mark.parametrize("revision", ["", "x", "1-2", "1/../..", "1\n%post", "1%(reboot)"])
def test_a_revision_that_is_not_a_number_is_refused(revision: str) -> None:
    with pytest.raises(tree.BuildError, match="must be a number"):
        tree.check_revision(revision)


def test_a_file_that_needs_a_newer_c_library_is_refused(tmp_path: Path) -> None:
    library = tmp_path / "aiohttp/_x.cpython-311-x86_64-linux-gnu.so"
    library.parent.mkdir()
    library.write_bytes(b"\0GLIBC_2.9\0GLIBC_PRIVATE\0GLIBC_2.36\0")
    tree.check_glibc(tmp_path, DEBIAN)
    with pytest.raises(tree.BuildError, match=r"aiohttp/.* needs glibc 2\.36, but Debian 12 has 2\.28"):
        tree.check_glibc(tmp_path, replace(DEBIAN, glibc="2.28"))


@pytest.mark.parametrize("target", targets.of_kind("rpm").values(), ids=lambda target: target.name)
def test_a_spec_is_filled_in(target: targets.Target) -> None:
    text = rpm.spec(target, "3", Path("/files"), 1_700_000_000)
    assert re.findall(r"@[A-Z_]+@", text) == []
    assert f"\nRequires: /usr/bin/python{target.python}\n" in text
    assert f"\nRelease: 3{target.release}\n" in text
    assert "\n* Tue Nov 14 2023 dockershim" in text
    assert re.search(r"^Provides: bundled\(python3dist\(grpcio\)\) = [0-9.]+$", text, re.MULTILINE)
    assert f"\nProvides: cri-dockerd = {cri_dockerd.VERSION}\n" in text


def test_the_selinux_module_labels_what_the_server_uses() -> None:
    lines = [line for line in (MODULE / "dockershim.fc").read_text().splitlines() if not line.startswith("#")]
    labels = {line.split()[0]: line.split()[-1].split(":")[2] for line in lines}
    defaults = config.Config()
    sockets = (defaults.container_runtime_endpoint, cri_dockerd.ENDPOINT.replace("/var/run", "/run"))
    for folder, label in (
        (defaults.root_directory, "container_var_lib_t"),
        (defaults.state_directory, "container_var_run_t"),
    ):
        assert labels[f"{folder}(/.*)?"] == label
    for socket in sockets:
        assert labels[socket.removeprefix("unix://").replace(".", r"\.")] == "container_var_run_t"
    in_run = {path: label for path, label in labels.items() if path.startswith("/run/")}
    assert {path: label for path, label in labels.items() if path.startswith("/var/run/")} == {
        f"/var{path}": label for path, label in in_run.items()
    }
    required = re.findall(r"^\ttype (\w+);$", (MODULE / "dockershim.te").read_text(), re.MULTILINE)
    assert sorted(required) == sorted(set(labels.values()))


def test_the_spec_has_each_unit() -> None:
    text = rpm.SPEC.read_text()
    for unit in tree.UNITS:
        assert f"\n/usr/lib/systemd/system/{unit.split('/')[0]}\n" in text
