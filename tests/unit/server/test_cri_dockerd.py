"""cri-dockerd's command line: its flags as the real one has them, and what tools that were written for it call."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dockershim import __version__
from dockershim.server import cli, config, cri_dockerd, log, serving_process
from dockershim.server.config import Config
from dockershim.server.cri_dockerd import FLAGS, Effect, Refused, command
from tests.unit.server.fakes import fake_compose

ROOT = Path(__file__).parents[3]
#: What `cri-dockerd --help` of 0.4.4 lists: name, type ("" for a switch), default ("" if it shows none).
REAL = """\
    --buildinfo
    --cni-bin-dir string "/opt/cni/bin"
    --cni-cache-dir string "/var/lib/cni/cache"
    --cni-conf-dir string "/etc/cni/net.d"
    --container-runtime-endpoint string "unix:///var/run/cri-dockerd.sock"
    --cri-dockerd-root-directory string "/var/lib/cri-dockerd"
    --docker-endpoint string "unix:///var/run/docker.sock"
    --hairpin-mode HairpinMode none
-h, --help
    --image-pull-progress-deadline duration 1m0s
    --ipv6-dual-stack
    --log-level string "info"
    --network-plugin string "cni"
    --network-plugin-mtu int32
    --pod-cidr string
    --pod-infra-container-image string "registry.k8s.io/pause:3.10"
    --runtime-cgroups string
    --runtime-request-timeout duration
    --streaming-bind-addr string
    --version
"""
#: Ours has another default, which the flag's help names.
OTHER_DEFAULT = ' "registry.k8s.io/pause:3.10"'
DROP_IN = Config(container_runtime_endpoint=cri_dockerd.ENDPOINT, adopt_from=(Path(cri_dockerd.ROOT),))
SYSTEMD = replace(DROP_IN, container_runtime_endpoint="fd://")
VERSION = f"0.4.4 (dockershim-{__version__})"


def configuration(*arguments: str) -> Config:
    """What cri-dockerd with these arguments would serve by here."""
    asked = command(arguments)
    assert isinstance(asked, Mapping)
    return config.load(asked, {}, Path("/dev/null"), cri_dockerd.DEFAULTS)


def execstart(unit: str, program: str) -> list[str]:
    """The arguments of the last ExecStart= of a unit, which has to start the program."""
    lines = [line.partition("=")[2] for line in unit.splitlines() if line.startswith("ExecStart=")]
    words = shlex.split(lines[-1])
    assert words[0] == program
    return words[1:]


# -- Its flags.


def test_the_flags_are_those_of_the_real_one() -> None:
    shown = re.findall(r"^  (-h,)? +(--\S+)(?: (\w+))?   +[A-Z].*?(?: \(default (.*)\))?$", cri_dockerd.usage(), re.M)
    ours = [" ".join(filter(None, parts)) for parts in shown]
    assert ours == [" ".join(line.split()) for line in REAL.replace(OTHER_DEFAULT, "").splitlines()]


@pytest.mark.parametrize("flag", FLAGS, ids=lambda flag: flag.name)
def test_the_default_of_a_flag_changes_nothing(flag: cri_dockerd.Flag) -> None:
    if flag.effect is Effect.ANSWER:
        assert configuration(f"--{flag.name}=false") == DROP_IN
    else:
        assert configuration(f"--{flag.name}={flag.default}") == configuration() == DROP_IN


def test_each_flag_sets_an_option_as_the_table_says() -> None:
    options = {option.key: option for option in config.OPTIONS}
    for flag in FLAGS:
        if flag.effect is Effect.ANSWER:
            assert flag.option not in options
        else:
            assert options[flag.option].effective is (flag.effect is not Effect.NONE)
        assert bool(flag.sets) is (flag.effect is Effect.TRANSLATED)


def test_the_table_of_the_document_is_that_of_the_code() -> None:
    document = (ROOT / "docs/migrating.md").read_text()
    rows = [
        f"| `--{flag.name}` | {'; '.join(filter(None, (flag.effect.value, flag.here)))} |"
        for flag in FLAGS
        if flag.effect is not Effect.ANSWER
    ]
    assert "\n".join(["| Flag of cri-dockerd | Here |", "|---|---|", *rows, ""]) in document


# -- What tools call it with.


@pytest.mark.parametrize("program", ["/usr/bin/cri-dockerd", "/usr/local/bin/cri-dockerd"])
@pytest.mark.parametrize(
    ("image", "plugin", "rest", "expected"),
    [
        ("registry.k8s.io/pause:3.10.1", "cni", " --hairpin-mode=hairpin-veth", "cni"),
        ("registry.k8s.io/pause:3.10", "kubenet", " --hairpin-mode=hairpin-veth", "kubenet"),
        ("registry.cn-hangzhou.aliyuncs.com/google_containers/pause:3.9", "", " --hairpin-mode=hairpin-veth", "docker"),
        ("host.minikube.internal:5000/pause@sha256:" + 64 * "0", "cni", "", "cni"),
    ],
)
def test_the_drop_in_of_minikube_is_taken(program: str, image: str, plugin: str, rest: str, expected: str) -> None:
    flags = f"--container-runtime-endpoint fd:// --pod-infra-container-image={image} --network-plugin={plugin}{rest}"
    unit = f"[Service]\nExecStart=\nExecStart={program} {flags}"
    hairpin = "hairpin-veth" if rest else "none"
    wanted = replace(SYSTEMD, pod_infra_container_image=image, network_plugin=expected, hairpin_mode=hairpin)
    assert configuration(*execstart(unit, program)) == wanted


@pytest.mark.parametrize("endpoint", ["unix:///var/run/cri-dockerd.sock", "fd://"])
@pytest.mark.parametrize(
    ("pods", "dual"),
    [("10.233.64.0/18", ""), ("10.233.64.0/18,fd85:ee78:d8a6:8607::1:0000/112", "--ipv6-dual-stack=True")],
)
def test_the_unit_of_kubespray_is_taken(endpoint: str, pods: str, dual: str) -> None:
    program = "/usr/local/bin/cri-dockerd"
    network = f"--cni-conf-dir=/etc/cni/net.d --cni-bin-dir=/opt/cni/bin --network-plugin=cni --pod-cidr={pods} {dual}"
    unit = f"[Service]\nType=notify\nExecStart={program} --container-runtime-endpoint {endpoint} {network}\n"
    wanted = replace(DROP_IN, container_runtime_endpoint=endpoint, pod_cidr=pods, ipv6_dual_stack=bool(dual))
    assert configuration(*execstart(unit, program)) == wanted


def test_critest_of_cri_tools_starts_it() -> None:
    assert configuration(*("--network-plugin=", f"--container-runtime-endpoint={cri_dockerd.ENDPOINT}")) == replace(
        DROP_IN, network_plugin="docker"
    )


# -- pflag's rules.


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        pytest.param("", {}, id="nothing"),
        pytest.param("--pod-cidr=10.0.0.0/8", {"pod_cidr": "10.0.0.0/8"}, id="joined"),
        pytest.param("--pod-cidr 10.0.0.0/8", {"pod_cidr": "10.0.0.0/8"}, id="as two words"),
        pytest.param("--pod-cidr --version", {"pod_cidr": "--version"}, id="a value like a flag"),
        pytest.param("--pod-cidr=a=b", {"pod_cidr": "a=b"}, id="a value with an equals sign"),
        pytest.param("--pod-cidr=", {"pod_cidr": ""}, id="an empty value"),
        pytest.param("--pod-cidr=a --pod-cidr=b", {"pod_cidr": "b"}, id="the last of two"),
        pytest.param("--ipv6-dual-stack", {"ipv6_dual_stack": "true"}, id="a bare switch"),
        pytest.param("--ipv6-dual-stack=T --version=0", {"ipv6_dual_stack": "true"}, id="switches of Go"),
        pytest.param("-h=false", {}, id="a shorthand with a value"),
        pytest.param("-test.v", {}, id="what pflag leaves to Go's tests"),
        pytest.param("--pod-cidr=a --", {"pod_cidr": "a"}, id="the end of flags"),
        pytest.param("--log-level=", {}, id="the empty level is the default"),
        pytest.param("--log-level=TRACE", {"log_level": "TRACE"}, id="a level in capitals"),
        pytest.param("--network-plugin-mtu=0x5dc", {"network_plugin_mtu": "1500"}, id="hexadecimal"),
        pytest.param("--network-plugin-mtu=02734", {"network_plugin_mtu": "1500"}, id="octal"),
        pytest.param("--network-plugin-mtu=+1_500", {"network_plugin_mtu": "1500"}, id="a sign and an underscore"),
        pytest.param("--runtime-request-timeout=1h2.5m.5s", {"runtime_request_timeout": "1h2.5m.5s"}, id="a duration"),
        pytest.param("--runtime-request-timeout=+0", {"runtime_request_timeout": "0"}, id="a zero without a unit"),
        pytest.param("--cri-dockerd-root-directory=/data", {"adopt_from": "/data"}, id="another root"),
    ],
)
def test_arguments_are_read_as_pflag_reads_them(arguments: str, expected: Mapping[str, str]) -> None:
    assert command(arguments.split()) == expected


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--xyzzy", "unknown flag: --xyzzy"),
        ("--xyzzy=1", "unknown flag: --xyzzy"),
        ("--root-directory=/a", "unknown flag: --root-directory"),
        ("-xh", "unknown shorthand flag: 'x' in -xh"),
        ("-hx", "unknown shorthand flag: 'x' in -x"),
        ("--=1", "bad flag syntax: --=1"),
        ("---pod-cidr", "bad flag syntax: ---pod-cidr"),
        ("--pod-cidr", "flag needs an argument: --pod-cidr"),
        ("serve", "Unknown command: serve"),
        ("--version -- doctor", "Unknown command: doctor"),
        (
            "--ipv6-dual-stack=yes",
            'invalid argument "yes" for "--ipv6-dual-stack" flag: strconv.ParseBool: parsing "yes": invalid syntax',
        ),
        (
            "--help=1.0",
            'invalid argument "1.0" for "-h, --help" flag: strconv.ParseBool: parsing "1.0": invalid syntax',
        ),
        (
            "--network-plugin-mtu=1e3",
            'invalid argument "1e3" for "--network-plugin-mtu" flag: strconv.ParseInt: parsing "1e3": invalid syntax',
        ),
        (
            "--network-plugin-mtu=9999999999",
            (
                'invalid argument "9999999999" for "--network-plugin-mtu" flag: '
                'strconv.ParseInt: parsing "9999999999": value out of range'
            ),
        ),
        (
            "--runtime-request-timeout=60",
            'invalid argument "60" for "--runtime-request-timeout" flag: time: missing unit in duration "60"',
        ),
        (
            "--runtime-request-timeout=1d",
            'invalid argument "1d" for "--runtime-request-timeout" flag: time: unknown unit "d" in duration "1d"',
        ),
        (
            "--runtime-request-timeout=1.2.3s",
            'invalid argument "1.2.3s" for "--runtime-request-timeout" flag: time: missing unit in duration "1.2.3s"',
        ),
        (
            "--runtime-request-timeout=",
            'invalid argument "" for "--runtime-request-timeout" flag: time: invalid duration ""',
        ),
        (
            "--hairpin-mode=veth",
            (
                'invalid argument "veth" for "--hairpin-mode" flag: "veth" is not a valid hairpin-mode value, '
                'must be one of: ["promiscuous-bridge" "hairpin-veth" "none"]'
            ),
        ),
    ],
)
def test_what_pflag_refuses_is_refused_in_its_words(arguments: str, message: str) -> None:
    with pytest.raises(Refused) as refused:
        command(arguments.split())
    assert (str(refused.value), refused.value.usage) == (message, True)


def test_a_level_that_does_not_exist_is_refused_without_the_flags() -> None:
    with pytest.raises(Refused) as refused:
        command(["--log-level=loud"])
    assert (str(refused.value), refused.value.usage) == ("Unknown log level: loud", False)


_WORDS = st.sampled_from(["-", "--", "=", "h", "test.", "1", "_", ".", "s", *(f"--{flag.name}" for flag in FLAGS)])


@settings(max_examples=50)
@given(st.lists(st.lists(_WORDS | st.text(max_size=3), max_size=4).map("".join), max_size=4))
def test_arguments_of_any_kind_are_read_or_refused(arguments: list[str]) -> None:
    try:
        asked = command(arguments)
    except Refused:
        return
    if not isinstance(asked, str):
        options = {option.key for option in config.OPTIONS}
        assert asked.keys() <= options
        assert all(isinstance(value, str) for value in asked.values())


@given(st.integers(-(2**31), 2**31 - 1))
def test_numbers_of_any_base_are_the_same(number: int) -> None:
    for text in (str(number), hex(number), oct(number), bin(number), oct(number).replace("0o", "0")):
        assert command([f"--network-plugin-mtu={text}"]) == {"network_plugin_mtu": str(number)}


# -- The program of that name.


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Config]:
    """The configurations that would have been served, on a node without a configuration file."""
    configs: list[Config] = []

    def run(settings: Config, load: Callable[[], Config], compose: object) -> int:
        assert load() == settings, "SIGHUP starts from the same flags"
        configs.append(settings)
        return 0

    monkeypatch.setattr(serving_process, "run", run)
    monkeypatch.setattr(log, "configure", lambda level, log_format: None)
    monkeypatch.setattr(config, "DEFAULT_FILE", tmp_path / "config.toml")
    return configs


@pytest.mark.parametrize("name", ["cri-dockerd", "/usr/bin/cri-dockerd", "./cri-dockerd"])
def test_the_name_of_the_program_decides(name: str, served: list[Config], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [name, "--container-runtime-endpoint", "fd://"])
    assert cli.main(compose=fake_compose) == 0
    monkeypatch.setattr(sys, "argv", ["/usr/bin/dockershim", "--container-runtime-endpoint", "fd://"])
    assert cli.main(compose=fake_compose) == 0
    assert served == [SYSTEMD, Config(container_runtime_endpoint="fd://")]


def test_options_of_dockershim_come_from_its_file_and_give_way_to_flags(served: list[Config], tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(
        'metrics_bind_addr = "127.0.0.1:9323"\npod_cidr = "10.1.0.0/24"\nadopt_from = ""'
    )
    assert cli.main_as_cri_dockerd(["--pod-cidr=10.2.0.0/24"], fake_compose) == 0
    file = replace(DROP_IN, metrics_bind_addr="127.0.0.1:9323", adopt_from=())
    assert served == [replace(file, pod_cidr="10.2.0.0/24")]


def test_its_own_root_is_not_adopted(served: list[Config]) -> None:
    """The way back from dockershim is cri-dockerd with its root directory, and this is the way back from there."""
    assert cli.main_as_cri_dockerd(["--cri-dockerd-root-directory=/var/lib/dockershim"], fake_compose) == 0
    assert served == [replace(DROP_IN, adopt_from=())]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--version"], f"cri-dockerd {VERSION}\n"),
        (["--version", "--buildinfo", "--log-level=loud"], f"cri-dockerd {VERSION}\n"),
        (
            ["--buildinfo"],
            f"Program: cri-dockerd\nVersion: {VERSION}\nGitCommit: dockershim-{__version__}\nGo version: ",
        ),
        (["-h", "--version"], "\n\nUsage:\n  cri-dockerd [flags]\n\nFlags:\n      --buildinfo "),
        (["--help"], " (default none)\n  -h, --help   "),
    ],
)
def test_what_is_only_asked_is_answered(
    arguments: list[str], said: str, served: list[Config], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main_as_cri_dockerd(arguments) == 0
    assert said in capsys.readouterr().out
    assert served == []


@pytest.mark.parametrize(
    ("arguments", "message", "usage"),
    [
        (["--xyzzy"], "unknown flag: --xyzzy", True),
        (["--log-level=lo\x1bud"], r"Unknown log level: lo\\x1bud", False),
        (["--cni-conf-dir=net.d"], "cni_conf_dir (flag --cni-conf-dir): must be an absolute path, got 'net.d'", False),
    ],
)
def test_what_is_refused_ends_with_1_and_a_line(
    arguments: list[str], message: str, usage: bool, served: list[Config], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main_as_cri_dockerd(arguments) == 1
    *flags, line = capsys.readouterr().err.splitlines()
    assert "\n".join(flags) == (cri_dockerd.usage().rstrip() if usage else "")
    assert re.fullmatch(r'time="\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ" level=fatal msg="(.*)"', line)
    assert f'msg="{message}"' in line
    assert served == []
