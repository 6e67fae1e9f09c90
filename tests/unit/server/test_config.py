"""The table of options: how values are read, which source wins, and what an operator is told."""

from __future__ import annotations

import ast
import dataclasses
import re
import tomllib
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dockershim.server import config
from dockershim.server.config import OPTIONS, Config, ConfigError, format_duration, load, merge_reload, parse_duration

PACKAGE = Path(config.__file__).parent

# cri-dockerd's flags, as its users have them in unit files.
CRI_DOCKERD_FLAGS = {
    *("--container-runtime-endpoint", "--docker-endpoint", "--cri-dockerd-root-directory", "--streaming-bind-addr"),
    *("--pod-infra-container-image", "--image-pull-progress-deadline", "--runtime-request-timeout", "--pod-cidr"),
    *("--ipv6-dual-stack", "--network-plugin", "--cni-conf-dir", "--cni-bin-dir", "--cni-cache-dir"),
    *("--network-plugin-mtu", "--hairpin-mode", "--runtime-cgroups", "--log-level"),
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "config.toml"
    path.write_text("")
    return path


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        pytest.param("1m0s", 60.0, id="what Go prints for a minute"),
        pytest.param("250ms", 0.25, id="milliseconds"),
        pytest.param("1h2m3.5s", 3723.5, id="every larger unit, with a fraction"),
        pytest.param("1.5h", 5400.0, id="a fraction of an hour"),
        pytest.param("100us", 1e-4, id="microseconds"),
        pytest.param("100µs", 1e-4, id="microseconds by the micro sign"),
        pytest.param("100μs", 1e-4, id="microseconds by the Greek letter"),
        pytest.param("1500000000ns", 1.5, id="nanoseconds"),
        pytest.param(".5s", 0.5, id="no digit before the point"),
        pytest.param("0", 0.0, id="a bare zero, as Go allows"),
        pytest.param("90", 90.0, id="plain seconds as text"),
        pytest.param(90, 90.0, id="plain seconds from TOML"),
        pytest.param(0.5, 0.5, id="a fraction from TOML"),
    ],
)
def test_a_duration_is_read(value: object, seconds: float) -> None:
    assert parse_duration(value) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "value",
    [
        pytest.param("", id="nothing"),
        pytest.param("s", id="a unit alone"),
        pytest.param("1x", id="an unknown unit"),
        pytest.param("1m30", id="a second part without a unit"),
        pytest.param("1m 0s", id="a space"),
        pytest.param("1s\n", id="a line end"),
        pytest.param("-1s", id="a negative text"),
        pytest.param(-1, id="a negative number"),
        pytest.param("1e3s", id="an exponent"),
        pytest.param("٣s", id="a digit that is not ASCII"),
        pytest.param("nan", id="not a number as text"),
        pytest.param(float("nan"), id="not a number from TOML"),
        pytest.param("inf", id="no end as text"),
        pytest.param(float("inf"), id="no end from TOML"),
        pytest.param("9223372037s", id="more than Go's int64 holds"),
        pytest.param(True, id="a boolean"),
        pytest.param([1], id="a list"),
    ],
)
def test_what_is_no_duration_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match="must be a duration"):
        parse_duration(value)


@given(st.integers(min_value=0, max_value=10**15))
def test_a_printed_duration_reads_back(microseconds: int) -> None:
    seconds = microseconds / 10**6
    assert parse_duration(format_duration(seconds)) == pytest.approx(seconds, rel=1e-12, abs=1e-9)


@given(st.text())
def test_any_text_is_a_duration_or_a_value_error(text: str) -> None:
    with suppress(ValueError):
        assert 0 <= parse_duration(text) <= config.MAX_DURATION


@pytest.mark.parametrize(
    ("flags", "environ", "text", "level"),
    [
        pytest.param({}, {}, "", "info", id="default"),
        pytest.param({}, {}, 'log_level = "error"', "error", id="file over default"),
        pytest.param(
            {}, {"DOCKERSHIM_LOG_LEVEL": "warning"}, 'log_level = "error"', "warning", id="environment over file"
        ),
        pytest.param(
            {"log_level": "debug"},
            {"DOCKERSHIM_LOG_LEVEL": "warning"},
            'log_level = "error"',
            "debug",
            id="flag over environment",
        ),
    ],
)
def test_the_nearest_source_wins(
    flags: dict[str, str], environ: dict[str, str], text: str, level: str, file: Path
) -> None:
    file.write_text(text)
    assert load(flags, environ, file).log_level == level


@pytest.mark.parametrize(
    ("flag", "text", "attribute", "value"),
    [
        pytest.param("container_runtime_endpoint", "/run/x.sock", None, "unix:///run/x.sock", id="a bare path"),
        pytest.param("container_runtime_endpoint", "fd://", None, "fd://", id="socket activation"),
        pytest.param("cri_dockerd_root_directory", "/a", "root_directory", Path("/a"), id="cri-dockerd's own name"),
        pytest.param("root_directory", "/a", None, Path("/a"), id="our name"),
        pytest.param("cni_bin_dir", "/a, /b", None, (Path("/a"), Path("/b")), id="a list with a space"),
        pytest.param("network_plugin", "", None, "docker", id="no network plugin"),
        pytest.param("network_plugin", "no-op", None, "docker", id="the no-op plugin"),
        pytest.param("network_plugin", "kubenet", None, "kubenet", id="kubenet"),
        pytest.param("runtime_request_timeout", "0", None, 120.0, id="cri-dockerd's 0 is its built-in limit"),
        pytest.param("runtime_request_timeout", "15m", None, 900.0, id="a limit of one's own"),
        pytest.param("streaming_bind_addr", "", None, "127.0.0.1:0", id="no address"),
        pytest.param("streaming_bind_addr", "10.0.0.1", None, "10.0.0.1:0", id="an address without a port"),
        pytest.param("streaming_bind_addr", "10.0.0.1:10010", None, "10.0.0.1:10010", id="address and port"),
        pytest.param("streaming_bind_addr", "::1", None, "[::1]:0", id="IPv6 without a port"),
        pytest.param("debug_bind_addr", "", None, "", id="no page"),
        pytest.param("debug_bind_addr", "127.0.0.1:9324", None, "127.0.0.1:9324", id="a page for this machine"),
        pytest.param("debug_bind_addr", "::1:9324", None, "[::1]:9324", id="a page over IPv6"),
        pytest.param("streaming_bind_addr", "[::]:10010", None, "[::]:10010", id="IPv6 with a port"),
        pytest.param("ipv6_dual_stack", "T", None, True, id="a boolean as Go spells it"),
        pytest.param("docker_tls_ca", "", None, None, id="no path"),
        pytest.param("log_level", "WARN", None, "warning", id="a level of logrus"),
        pytest.param("log_level", "trace", None, "debug", id="a level Python lacks"),
        pytest.param("network_plugin_mtu", "1400", None, 1400, id="a number"),
        pytest.param("pod_cidr", "10.244.0.0/24,fd00::/64", None, "10.244.0.0/24,fd00::/64", id="two networks"),
    ],
)
def test_a_value_of_cri_dockerd_means_what_it_means_there(
    flag: str, text: str, attribute: str | None, value: object, file: Path
) -> None:
    assert getattr(load({flag: text}, {}, file), attribute or flag) == value


@pytest.mark.parametrize(
    ("key", "value"),
    [
        pytest.param("container_runtime_endpoint", "tcp://0.0.0.0:1", id="the CRI has no authentication for a network"),
        pytest.param("container_runtime_endpoint", "", id="the CRI must be somewhere"),
        pytest.param("container_runtime_endpoint", "unix://run/x.sock", id="a relative path"),
        pytest.param("container_runtime_endpoint", "unix:///run/", id="a folder"),
        pytest.param("container_runtime_endpoint", "unix:///" + "x" * 100, id="a path the kernel has no room for"),
        pytest.param("docker_endpoint", "docker.sock", id="an engine without a scheme"),
        pytest.param("network_plugin", "calico", id="a network nobody here makes"),
        pytest.param("network_plugin_mtu", "-1", id="a negative size"),
        pytest.param("network_plugin_mtu", "70000", id="a size beyond any link"),
        pytest.param("ipv6_dual_stack", "yes", id="a boolean Go does not know"),
        pytest.param("cni_bin_dir", "", id="nowhere to look for plugins"),
        pytest.param("cni_bin_dir", "/a,b", id="a relative folder in a list"),
        pytest.param("cni_timeout", "0", id="no time at all"),
        pytest.param("streaming_bind_addr", "localhost:1", id="a name is no address"),
        pytest.param("debug_bind_addr", "0.0.0.0:9324", id="a page for everybody"),
        pytest.param("debug_bind_addr", "10.0.0.1:9324", id="a page for a network"),
        pytest.param("debug_bind_addr", "[::]:9324", id="a page for everybody over IPv6"),
        pytest.param("debug_bind_addr", "127.0.0.1", id="a page without a port"),
        pytest.param("streaming_bind_addr", "127.0.0.1:70000", id="no such port"),
        pytest.param("streaming_bind_addr", ":10010", id="a port alone would serve on every interface"),
        pytest.param("pod_cidr", "10.0.0.0/33", id="no such network"),
        pytest.param("log_level", "loud", id="no such level"),
        pytest.param("container_log_format", "xml", id="no such format"),
        pytest.param("engine_log_max_size", "32", id="bytes, or a forgotten unit"),
        pytest.param("engine_log_max_size", "0k", id="no room for a line"),
        pytest.param("engine_log_max_files", "1", id="a file that would be emptied in place"),
    ],
)
def test_a_wrong_value_names_its_key_and_where_it_came_from(key: str, value: str, file: Path) -> None:
    with pytest.raises(ConfigError) as by_flag:
        load({key: value}, {}, file)
    variable = f"DOCKERSHIM_{key.upper()}"
    with pytest.raises(ConfigError) as by_environment:
        load({}, {variable: value}, file)
    file.write_text(f"{key} = {config.to_toml(value)}")
    with pytest.raises(ConfigError) as by_file:
        load({}, {}, file)

    assert by_flag.value.problems[0].startswith(f"{key} (flag --{key.replace('_', '-')}): must ")
    assert by_environment.value.problems[0].startswith(f"{key} (environment {variable}): must ")
    assert by_file.value.problems[0].startswith(f"{key} ({file}): must ")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        pytest.param("log_levle = 'info'", "log_levle ({file}): unknown option", id="a misspelt key"),
        pytest.param("[server]\nlog_level = 'info'", "server ({file}): unknown option", id="a table"),
        pytest.param("log_level = 7", "log_level ({file}): must be a string, got 7", id="a number for a text"),
        pytest.param("cni_bin_dir = []", "cni_bin_dir ({file}): must be a list", id="an empty list"),
        pytest.param("cni_bin_dir = 7", "cni_bin_dir ({file}): must be a list", id="a number for a list"),
        pytest.param("network_plugin_mtu = true", "network_plugin_mtu ({file}): must be an integer", id="true is no 1"),
        pytest.param("log_level =", "config ({file}): ", id="no TOML"),
    ],
)
def test_a_wrong_file_is_refused(text: str, problem: str, file: Path) -> None:
    file.write_text(text)
    with pytest.raises(ConfigError) as refused:
        load({}, {}, file)
    assert refused.value.problems[0].startswith(problem.format(file=file))


def test_a_file_that_was_asked_for_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        load({}, {}, tmp_path / "none.toml")


def test_a_file_that_is_not_utf_8_is_refused(file: Path) -> None:
    file.write_bytes(b'log_level = "\xff"')
    with pytest.raises(ConfigError, match="config"):
        load({}, {}, file)


def test_every_problem_is_told_at_once(file: Path) -> None:
    file.write_text("log_levle = 'info'")
    with pytest.raises(ConfigError) as refused:
        load({"cni_timeout": "soon"}, {"DOCKERSHIM_LOG_FORMAT": "xml", "DOCKERSHIM_NOPE": "1"}, file)
    assert len(refused.value.problems) == 4


def test_the_variables_kubernetes_sets_for_a_service_are_not_options(file: Path) -> None:
    links = {
        "DOCKERSHIM_SERVICE_HOST": "10.0.0.1",
        "DOCKERSHIM_SERVICE_PORT_METRICS": "9090",
        "DOCKERSHIM_PORT": "tcp://10.0.0.1:9090",
        "DOCKERSHIM_PORT_9090_TCP_ADDR": "10.0.0.1",
    }
    assert load({}, links, file) == load({}, {}, file)


@pytest.mark.parametrize(
    ("environ", "endpoint"),
    [
        pytest.param({"DOCKER_HOST": "tcp://10.0.0.1:2376"}, "tcp://10.0.0.1:2376", id="DOCKER_HOST"),
        pytest.param({}, "unix:///var/run/docker.sock", id="nothing says where"),
    ],
)
def test_an_empty_engine_endpoint_is_left_to_docker_host(environ: dict[str, str], endpoint: str, file: Path) -> None:
    assert load({"docker_endpoint": ""}, environ, file).docker_endpoint == endpoint


def test_docker_host_alone_changes_nothing(file: Path) -> None:
    assert load({}, {"DOCKER_HOST": "tcp://10.0.0.1:2376"}, file).docker_endpoint == "unix:///var/run/docker.sock"


def test_one_endpoint_named_twice_is_one_socket(file: Path) -> None:
    same = {"container_runtime_endpoint": "unix:///run/a.sock", "image_service_endpoint": "/run/a.sock"}
    assert load(same, {}, file).image_service_endpoint == ""


def test_half_a_client_certificate_is_refused(file: Path) -> None:
    with pytest.raises(ConfigError, match="docker_tls_key"):
        load({"docker_tls_cert": "/cert.pem"}, {}, file)


def test_the_printed_defaults_are_the_defaults(file: Path) -> None:
    file.write_text(config.default_file())
    assert (file.read_text().count("\n# "), tomllib.loads(file.read_text())) == (2 * len(OPTIONS) - 1, {})
    file.write_text(re.sub("^# ([a-z0-9_]+ = )", r"\1", file.read_text(), flags=re.MULTILINE))
    assert load({}, {}, file) == Config()
    assert list(tomllib.loads(file.read_text())) == [option.key for option in OPTIONS]


def test_drop_ins_come_after_the_file_in_the_order_of_their_names(file: Path) -> None:
    file.write_text('pod_cidr = "10.1.0.0/24"\nlog_level = "debug"\nlog_format = "json"')
    folder = file.with_name("config.toml.d")
    folder.mkdir()
    (folder / "20-site.toml").write_text('pod_cidr = "10.3.0.0/24"')
    (folder / "10-vendor.toml").write_text('pod_cidr = "10.2.0.0/24"\nlog_level = "error"')
    (folder / "30-old.toml.bak").write_text("nonsense")

    loaded = load({"log_format": "text"}, {}, file)

    assert (loaded.pod_cidr, loaded.log_level, loaded.log_format) == ("10.3.0.0/24", "error", "text")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        pytest.param("log_levle = 'info'", "log_levle ({file}): unknown option; did you mean log_level?", id="a key"),
        pytest.param("log_level = 7", "log_level ({file}): must be a string, got 7", id="a value"),
        pytest.param("log_level =", "config ({file}): ", id="no TOML"),
    ],
)
def test_a_wrong_drop_in_is_named(text: str, problem: str, file: Path) -> None:
    drop_in = file.with_name("config.toml.d") / "a.toml"
    drop_in.parent.mkdir()
    drop_in.write_text(text)
    with pytest.raises(ConfigError) as refused:
        load({}, {}, file)
    assert refused.value.problems[0].startswith(problem.format(file=drop_in))


def test_a_folder_of_drop_ins_that_is_none_is_refused(file: Path) -> None:
    file.with_name("config.toml.d").touch()
    with pytest.raises(ConfigError, match="Not a directory"):
        load({}, {}, file)


def test_a_name_that_is_like_one_of_ours_is_told(file: Path) -> None:
    with pytest.raises(ConfigError, match="unknown option; did you mean log_level"):
        load({}, {"DOCKERSHIM_LOG_LEVLE": "info"}, file)
    with pytest.raises(ConfigError, match=r"unknown option$"):
        load({}, {"DOCKERSHIM_XYZ": "info"}, file)


def test_effective_values_are_shown_with_their_sources(file: Path) -> None:
    file.write_text('pod_cidr = "10.1.0.0/24"')
    shown = config.effective_file({"log_level": "debug"}, {"DOCKERSHIM_CNI_TIMEOUT": "9s"}, file)
    assert f'pod_cidr = "10.1.0.0/24"  # {file}\n' in shown
    assert 'log_level = "debug"  # flag --log-level\n' in shown
    assert 'cni_timeout = "9s"  # environment DOCKERSHIM_CNI_TIMEOUT\n' in shown
    assert 'log_format = "text"  # default\n' in shown
    file.write_text(shown)
    assert load({}, {}, file) == load({"log_level": "debug"}, {"DOCKERSHIM_CNI_TIMEOUT": "9s"}, file)


def test_every_flag_of_cri_dockerd_is_known() -> None:
    ours = {config.flag_name(key) for option in OPTIONS for key in option.keys}
    assert ours >= CRI_DOCKERD_FLAGS


def keys_that_are_read() -> set[str]:
    """The options that some module of the server takes from the configuration, by name."""
    keys = {option.key for option in OPTIONS}
    modules = [path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "config.py" and "_pb2" not in path.name]
    nodes = (node for module in modules for node in ast.walk(ast.parse(module.read_text())))
    found = (node for node in nodes if isinstance(node, ast.Attribute) and node.attr in keys)
    return {node.attr for node in found if re.search(r"\b(_?config|settings)$", ast.unparse(node.value))}


def test_every_option_is_read_or_told_to_have_no_effect() -> None:
    assert keys_that_are_read() == {option.key for option in OPTIONS if option.effective}


def test_a_flag_without_effect_is_told_when_it_is_set() -> None:
    assert config.without_effect(Config()) == ()
    assert config.without_effect(Config(runtime_cgroups="/system.slice")) == ("runtime_cgroups",)
    assert config.without_effect(Config(ipv6_dual_stack=True)) == ("ipv6_dual_stack",)


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.key)
def test_a_reload_takes_over_what_the_table_says(option: config.Option) -> None:
    changed: dict[str, Any] = {option.key: object()}
    wanted = dataclasses.replace(Config(), **changed)

    reload = merge_reload(Config(), wanted)

    if option.reloads:
        assert (reload.config, reload.applied, reload.need_restart) == (wanted, (option.key,), ())
    else:
        assert (reload.config, reload.applied, reload.need_restart) == (Config(), (), (option.key,))


def test_what_a_running_server_can_take_over() -> None:
    assert {option.key for option in OPTIONS if option.reloads} == {
        "image_pull_progress_deadline",
        "log_format",
        "log_level",
        "nri_plugin_registration_timeout",
        "nri_plugin_request_timeout",
        "runtime_hook_timeout",
        "runtime_request_timeout",
        "shutdown_grace",
    }


def test_a_drop_in_is_read_and_keeps_what_it_has() -> None:
    first = config.drop_in(None, {"cni_bin_dir": ("/opt/cni/bin", "/usr/lib/cni")}, "setup")
    second = config.drop_in(first, {"oci_runtime": "dockershim-runc", "early_network": True}, "setup")
    read = tomllib.loads(second.decode())
    assert read == {
        "cni_bin_dir": ["/opt/cni/bin", "/usr/lib/cni"],
        "oci_runtime": "dockershim-runc",
        "early_network": True,
    }
    assert read.keys() <= {key for option in config.OPTIONS for key in option.keys}
