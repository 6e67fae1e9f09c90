"""What the Debian package has of the option table, its versions, and the locks it is built from."""

from __future__ import annotations

import itertools
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from deploy.deb import texts
from deploy.deb.__main__ import version_of
from deploy.targets import TARGETS
from deploy.tree import version
from dockershim.server import config, cri_dockerd

ROOT = Path(__file__).parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
FLAGS = [config.flag_name(key) for option in config.OPTIONS for key in option.keys]


def test_the_configuration_file_changes_nothing() -> None:
    assert tomllib.loads(texts.config_file()) == {}


def test_the_configuration_file_has_each_default_as_a_comment() -> None:
    defaults = re.sub(r"^#(?=\S)", "", texts.config_file().removeprefix(texts.CONFIG_HEAD), flags=re.MULTILINE)
    assert defaults == config.default_file()


@pytest.mark.parametrize("page", ["dockershim.1.scd", "dockershim-config.5.scd"])
def test_a_manual_page_has_every_option(page: str) -> None:
    text = texts.manual_page((ROOT / "deploy/deb" / page).read_text()).replace("\\", "")
    wanted = FLAGS if page.startswith("dockershim.1") else [f"{option.key}* = " for option in config.OPTIONS]
    assert [name for name in wanted if f"*{name}" not in text] == []
    assert "@" not in text


def test_the_drop_in_provides_the_release_whose_command_line_it_takes() -> None:
    text = texts.manual_page((ROOT / "deploy/deb/cri-dockerd.1.scd").read_text()).replace("\\", "")
    assert [flag.name for flag in cri_dockerd.FLAGS if f"*--{flag.name}" not in text] == []
    assert "@" not in text
    assert f"flags of cri-dockerd {cri_dockerd.VERSION} by" in text
    control = (ROOT / "deploy/deb/debian/control").read_text()
    assert f"Provides: cri-dockerd (= {cri_dockerd.VERSION})\n" in control
    module = (ROOT / "tests/kubernetes/cri-dockerd/go.mod").read_text()
    assert f"github.com/Mirantis/cri-dockerd v{cri_dockerd.VERSION} " in module


@pytest.mark.parametrize("shell", texts.COMPLETIONS)
def test_a_completion_has_every_flag(shell: str) -> None:
    text = texts.completion(shell)
    assert [flag for flag in FLAGS if flag.removeprefix("--") not in text] == []


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        pytest.param(["co"], ["config"], id="a command"),
        pytest.param(["serve", "--adopt"], ["--adopt-from"], id="a flag"),
        pytest.param(["--root-directory", "/us"], ["/usr"], id="a folder for a value"),
    ],
)
def test_bash_completes(typed: list[str], offered: list[str], tmp_path: Path) -> None:
    file = tmp_path / "completion"
    file.write_text(texts.completion("bash"))
    ask = (
        f'. {file}; COMP_WORDS=(dockershim "$@"); COMP_CWORD=$#; _shtab_dockershim; printf "%s\\n" "${{COMPREPLY[@]}}"'
    )
    bash = shutil.which("bash")
    assert bash is not None
    done = subprocess.run([bash, "-c", ask, "bash", *typed], capture_output=True, text=True, check=True)
    assert done.stdout.split() == offered


def test_versions_sort_as_they_are_released() -> None:
    old, new = TARGETS["bookworm"], TARGETS["trixie"]
    order = [
        version_of(version("0.2.0.dev1"), "1", old),
        version_of(version("0.2.0rc1"), "1", old),
        version_of(version("0.2.0"), "1", old),
        version_of(version("0.2.0"), "1", new),
        version_of(version("0.2.0"), "2", old),
        version_of(version("0.10.0"), "1", old),
    ]
    for earlier, later in itertools.pairwise(order):
        subprocess.run(["dpkg", "--compare-versions", earlier, "lt", later], check=True)


@pytest.mark.parametrize(
    ("lock", "wanted"),
    [
        ("server.txt", PROJECT["project"]["dependencies"]),
        ("server.txt", PROJECT["project"]["optional-dependencies"]["tracing"]),
        ("release.txt", PROJECT["dependency-groups"]["release"]),
    ],
)
def test_a_lock_has_what_the_project_asks_for(lock: str, wanted: list[str]) -> None:
    text = (ROOT / "deploy/locks" / lock).read_text()
    locked = dict(re.findall(r"^([a-z0-9-]+)==(\S+)", text, re.MULTILINE))
    for requirement in map(Requirement, wanted):
        assert Version(locked[requirement.name]) in requirement.specifier, "run make lock"
    entries = re.split(r"^(?=[a-z0-9-]+==)", text, flags=re.MULTILINE)[1:]
    assert all("--hash=sha256:" in entry for entry in entries)


def test_both_locks_have_the_same_grpc_and_protobuf() -> None:
    """The generated modules need the runtime that their generator was made for."""
    texts = [(ROOT / "deploy/locks" / name).read_text() for name in ("server.txt", "release.txt")]
    server, release = (dict(re.findall(r"^(grpcio|protobuf)==(\S+)", text, re.MULTILINE)) for text in texts)
    assert server == release != {}
