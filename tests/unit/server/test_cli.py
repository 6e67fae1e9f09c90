"""The command line, up to the moment of serving."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from dockershim import __version__
from dockershim.server import cli, log, serving_process
from dockershim.server.config import Config
from tests.unit.server.fakes import fake_compose


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Config]:
    """The configurations that would have been served, in an environment without any of ours."""
    configs: list[Config] = []

    def run(config: Config, load: Callable[[], Config], compose: object) -> int:
        assert load() == config, "SIGHUP starts from the same flags"
        configs.append(config)
        return 0

    monkeypatch.setattr(serving_process, "run", run)
    monkeypatch.setattr(log, "configure", lambda level, log_format: None)
    (tmp_path / "config.toml").write_text('pod_cidr = "10.1.0.0/24"')
    monkeypatch.setenv("DOCKERSHIM_CONFIG", str(tmp_path / "config.toml"))
    return configs


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        pytest.param([], Config(), id="nothing means serve"),
        pytest.param(["serve"], Config(), id="the command alone"),
        pytest.param(["--log-level=debug"], Config(log_level="debug"), id="a flag without a command"),
        pytest.param(["serve", "--log-level", "debug"], Config(log_level="debug"), id="the value as its own word"),
        pytest.param(["--log-level", "debug", "serve"], Config(log_level="debug"), id="the command last"),
        pytest.param(["--log-level=info", "--log-level=debug"], Config(log_level="debug"), id="the last of two"),
        pytest.param(["--ipv6-dual-stack"], Config(ipv6_dual_stack=True), id="a bare switch"),
        pytest.param(["--ipv6-dual-stack", "serve"], Config(ipv6_dual_stack=True), id="a switch takes no word"),
        pytest.param(["--ipv6-dual-stack=false"], Config(), id="a switch with a value"),
        pytest.param(["--network-plugin="], Config(network_plugin="docker"), id="an empty value"),
        pytest.param(["--cri-dockerd-root-directory=/a"], Config(root_directory=Path("/a")), id="cri-dockerd's name"),
        pytest.param(
            ["--container-runtime-endpoint", "fd://", "--runtime-cgroups=/docker"],
            Config(container_runtime_endpoint="fd://", runtime_cgroups="/docker"),
            id="as in cri-dockerd's unit file",
        ),
    ],
)
def test_flags_are_those_of_pflag(argv: list[str], expected: Config, served: list[Config]) -> None:
    assert cli.main(argv, fake_compose) == 0
    assert [config.pod_cidr for config in served] == ["10.1.0.0/24"]
    assert [replace(config, pod_cidr="") for config in served] == [expected]


def test_the_flag_names_another_file(served: list[Config], tmp_path: Path) -> None:
    (tmp_path / "other.toml").write_text('pod_cidr = "10.2.0.0/24"')
    assert cli.main(["--config", str(tmp_path / "other.toml")], fake_compose) == 0
    assert served[0].pod_cidr == "10.2.0.0/24"


@pytest.mark.parametrize(
    "argv",
    [
        pytest.param(["--adopt-from=/a", "--adopt-from", "/b"], id="repeated"),
        pytest.param(["--adopt-from=/a,/b"], id="in one"),
    ],
)
def test_a_flag_may_be_repeated_where_that_makes_sense(argv: list[str], served: list[Config]) -> None:
    assert cli.main(argv, fake_compose) == 0
    assert served[0].adopt_from == (Path("/a"), Path("/b"))


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        pytest.param(["--xyzzy"], "arguments: --xyzzy; see dockershim --help\n", id="an unknown flag"),
        pytest.param(["--log-levle=x", "-y"], "did you mean --log-level?; see ", id="a misspelt flag"),
        pytest.param(["inof"], "unknown command: inof; did you mean info?; see ", id="a misspelt command"),
        pytest.param(["--log-lev=debug"], "--log-lev", id="an abbreviated flag"),
        pytest.param(["start"], "unknown command: start", id="an unknown command"),
        pytest.param(["config"], "unknown command: config", id="half a command"),
        pytest.param(["--json"], "--json: only valid for info, doctor and status", id="JSON of nothing"),
        pytest.param(["info", "--once"], "--once: only valid for status", id="once of another command"),
        pytest.param(["status", "--yes"], "--yes: only valid for setup and migrate", id="a yes to a question"),
        pytest.param(["migrate", "--undo"], "--undo: only valid for setup", id="an undo of a move"),
        pytest.param(["setup", "--back"], "--back: only valid for migrate", id="a way back of setup"),
        pytest.param(["setup", "--keep-socket"], "--keep-socket: only valid for migrate", id="a socket of setup"),
        pytest.param(
            ["migrate", "--back", "--keep-socket"], "--back: cannot be combined with --keep-socket", id="two ways"
        ),
        pytest.param(["setup", "--undo", "--network=bridge"], "--undo: cannot be combined with --network", id="both"),
        pytest.param(["info", "--pod"], "--pod: only valid for doctor", id="a pod of another command"),
        pytest.param(["--log-level"], "expected one argument", id="a flag without its value"),
    ],
)
def test_a_wrong_command_line_ends_with_2(
    argv: list[str], message: str, served: list[Config], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(argv)
    assert ended.value.code == 2
    told = capsys.readouterr().err
    assert message in told
    assert told.count("\n") == 1
    assert served == []


def test_a_wrong_value_ends_with_2_and_its_name(served: list[Config], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--cni-timeout=soon\n", "--log-format=xml"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(": must")[0] for line in lines] == [
        "dockershim: cni_timeout (flag --cni-timeout)",
        "dockershim: log_format (flag --log-format)",
    ]
    assert served == []


def test_the_defaults_are_printed_as_toml(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["config", "default"]) == 0
    assert '\n# root_directory = "/var/lib/dockershim"\n' in capsys.readouterr().out


def test_effective_values_are_printed_as_toml(served: list[Config], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["config", "show", "--log-level=debug"]) == 0
    shown = capsys.readouterr().out
    assert tomllib.loads(shown)["pod_cidr"] == "10.1.0.0/24"
    assert 'log_level = "debug"  # flag --log-level\n' in shown
    assert cli.main(["config", "show", "--cni-timeout=soon"]) == 2


@pytest.mark.parametrize(
    ("flag", "text"),
    [
        pytest.param("--version", f"dockershim {__version__}\n", id="version"),
        pytest.param("--buildinfo", "\ngrpcio ", id="what it is built from"),
        pytest.param("--help", "--cni-bin-dir VALUE", id="help"),
        pytest.param("-h", "config default", id="short help"),
    ],
)
def test_what_is_only_asked_is_answered(flag: str, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main([flag])
    assert ended.value.code == 0
    assert text in capsys.readouterr().out


def test_a_question_loads_no_part_of_the_server() -> None:
    script = "import sys, dockershim.server.cli; sys.exit(any(m in sys.modules for m in ('grpc', 'aiohttp', 'docker')))"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
