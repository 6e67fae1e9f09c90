"""How dockerd was started, and the limits of its logs."""

from __future__ import annotations

from pathlib import Path

import pytest

from dockershim.doctor.daemon import DEFAULT_FILE, Daemon, check_logs, read_daemon
from tests.unit.doctor.levels import fixes, levels

PID = 7


def process(
    folder: Path, *words: str, comm: str = "dockerd", cgroup: str = "0::/system.slice/docker.service\n"
) -> None:
    home = folder / str(PID)
    home.mkdir()
    (home / "comm").write_text(f"{comm}\n")
    (home / "cmdline").write_text("".join(f"{word}\0" for word in words))
    (home / "cgroup").write_text(cgroup)
    (home / "exe").symlink_to("/usr/bin/dockerd (deleted)")
    (folder / "docker.pid").write_text(str(PID))


@pytest.mark.parametrize(
    ("words", "cgroup", "expected"),
    [
        pytest.param(
            ["/usr/bin/dockerd", "-H", "fd://", "--containerd=/run/c.sock", "--log-opt", "max-size=1m"],
            "0::/system.slice/docker.service\n",
            Daemon("/usr/bin/dockerd", frozenset({"containerd", "log-opt"}), DEFAULT_FILE, "docker.service"),
            id="of the distribution",
        ),
        pytest.param(
            ["dockerd", "--config-file=/var/snap/docker/1/config/daemon.json"],
            "1:name=systemd:/system.slice/snap.docker.dockerd.service\n0::/\n",
            Daemon(
                "/usr/bin/dockerd",
                frozenset({"config-file"}),
                "/var/snap/docker/1/config/daemon.json",
                "snap.docker.dockerd.service",
            ),
            id="of snap, on cgroup v1",
        ),
        pytest.param(
            ["dockerd", "--config-file", "/a.json"],
            "0::/\n",
            Daemon("/usr/bin/dockerd", frozenset({"config-file"}), "/a.json", ""),
            id="without systemd",
        ),
    ],
)
def test_what_runs(words: list[str], cgroup: str, expected: Daemon, tmp_path: Path) -> None:
    process(tmp_path, *words, cgroup=cgroup)
    assert read_daemon(tmp_path / "docker.pid", tmp_path) == expected


def test_a_process_that_has_the_id_by_now_is_not_dockerd(tmp_path: Path) -> None:
    process(tmp_path, "sh", comm="sh")
    assert read_daemon(tmp_path / "docker.pid", tmp_path) is None
    assert read_daemon(tmp_path / "none", tmp_path) is None


@pytest.mark.parametrize(
    ("driver", "flags", "settings", "level"),
    [
        pytest.param("json-file", set(), None, "warn", id="no file"),
        pytest.param("json-file", set(), '{"log-opts": {"max-file": "3"}}', "warn", id="no limit"),
        pytest.param("json-file", set(), "not JSON", "warn", id="not JSON"),
        pytest.param("json-file", set(), "[]", "warn", id="a list"),
        pytest.param("json-file", set(), '{"log-opts": {"max-size": "1m"}}', "ok", id="a limit"),
        pytest.param("json-file", {"log-opt"}, None, "ok", id="flags"),
        pytest.param("journald", set(), None, "ok", id="another driver"),
    ],
)
def test_limits_of_logs(driver: str, flags: set[str], settings: str | None, level: str) -> None:
    findings = list(check_logs(driver, Daemon("dockerd", frozenset(flags), "/d.json"), settings))
    assert levels(findings) == {"container logs": level}
    assert ("/d.json" in fixes(findings)) == (level == "warn")


def test_an_engine_elsewhere_has_no_file_here() -> None:
    assert levels(check_logs("json-file", None, None)) == {"container logs": "ok"}
