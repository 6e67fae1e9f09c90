"""Upgrade, removal and purge, with a pod that runs."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.deb.conftest import Debian, answers, containers, crictl, files, run_pod

# On a busy machine dpkg and the compilation of a thousand modules take their time.
pytestmark = pytest.mark.timeout(300)

CONFIG = "etc/dockershim/config.toml"
#: The machine of the tests may have swap.
KUBELET = "containerRuntimeEndpoint: {}\nfailSwapOn: false\n"


def test_a_pod_is_the_same_after_an_upgrade(debian: Debian, tmp_path: Path) -> None:
    debian.install(debian.old_package)
    settings = debian.root / CONFIG
    settings.write_text(settings.read_text().replace('# log_level = "info"', 'log_level = "debug"'))
    debian.run("systemctl", "start", "dockershim.service")
    assert re.search(r"^RuntimeName: +docker$", answers(), re.MULTILINE)
    assert {item["type"] for item in json.loads(crictl("info"))["status"]["conditions"] if item["status"]} >= {
        "RuntimeReady",
        "NetworkReady",
    }
    assert "kernel" in debian.run("dockershim", "info").lower()
    pod, before, server = run_pod(tmp_path), containers(), debian.server()
    assert len(before) == 2

    debian.install(debian.package)
    answers()
    assert debian.server() not in (None, server)
    assert containers() == before
    assert crictl("pods", "--quiet", "--state=ready", "--no-trunc").split() == [pod]
    assert 'log_level = "debug"' in settings.read_text()
    # systemd keeps the socket, so that callers wait.
    assert "stop" not in " ".join(debian.asked_of_systemd())
    assert [line for line in debian.asked_of_systemd() if "dockershim.socket" in line and "restart" in line] == []
    crictl("stopp", pod)
    crictl("rmp", pod)
    assert containers() == {}


def doctor(debian: Debian, *flags: str) -> tuple[int, list[dict[str, str]]]:
    """The exit code of the installed command, and its findings."""
    done = debian.attempt("dockershim", "doctor", "--json", *flags)
    return done.returncode, json.loads(done.stdout)["findings"]


def wrong(findings: list[dict[str, str]]) -> dict[str, str]:
    """The mends of what failed, by title."""
    return {one["title"]: one["fix"] for one in findings if one["level"] == "fail"}


def test_doctor_runs_a_pod_and_its_mends_work(debian: Debian) -> None:
    """First with nothing wrong; then with three things broken, which are mended as it says."""
    debian.install(debian.package)
    debian.run("systemctl", "start", "dockershim.service")
    answers()
    code, findings = doctor(debian, "--pod")
    assert (code, wrong(findings)) == (0, {})
    assert {"pod: RunPodSandbox", "pod: removal"} <= {one["title"] for one in findings}
    assert not containers()

    debian.run("systemctl", "stop", "dockershim.service")
    settings = debian.root / CONFIG
    settings.write_text(settings.read_text() + '\ncni_bin_dir = "/nowhere"\n')
    kubelet = debian.root / "var/lib/kubelet/config.yaml"
    kubelet.parent.mkdir()
    kubelet.write_text(KUBELET.format("unix:///run/containerd/containerd.sock"))
    code, findings = doctor(debian)
    mends = wrong(findings)
    assert (code, set(mends)) == (1, {"server", "CNI plugins", "kubelet's endpoint"}), findings
    assert "/nowhere" in mends["CNI plugins"]
    assert f"unix:///run/dockershim.sock in /{kubelet.relative_to(debian.root)}" in mends["kubelet's endpoint"]

    settings.write_text(settings.read_text().replace('cni_bin_dir = "/nowhere"', ""))
    kubelet.write_text(KUBELET.format("unix:///run/dockershim.sock"))
    debian.run(*mends["server"].split())
    answers()
    code, findings = doctor(debian)
    assert (code, wrong(findings)) == (0, {})


def test_an_upgrade_starts_no_server_that_was_stopped(debian: Debian) -> None:
    debian.install(debian.old_package)
    debian.run("systemctl", "enable", "dockershim.service")
    debian.install(debian.package)
    assert "try-restart dockershim.service" in debian.asked_of_systemd()
    assert debian.server() is None


def test_pods_outlive_a_purge_and_are_found_by_the_next_install(debian: Debian, tmp_path: Path) -> None:
    debian.install(debian.package)
    debian.run("systemctl", "start", "dockershim.service")
    answers()
    pod, before = run_pod(tmp_path), containers()

    debian.run("apt-get", "remove", "-y", "dockershim")
    assert debian.server() is None
    assert containers() == before
    assert "pods exist, so /var/lib/dockershim" in debian.run("apt-get", "purge", "-y", "dockershim")
    assert containers() == before

    debian.install(debian.package)
    debian.run("systemctl", "start", "dockershim.service")
    answers()
    assert crictl("pods", "--quiet", "--state=ready", "--no-trunc").split() == [pod]
    crictl("stopp", pod)
    crictl("rmp", pod)


def test_purge_leaves_nothing(debian: Debian, tmp_path: Path) -> None:
    before = files(debian)
    debian.install(debian.package)
    debian.run("systemctl", "enable", "dockershim.socket", "dockershim.service")
    debian.run("systemctl", "start", "dockershim.service")
    answers()
    pod = run_pod(tmp_path)
    crictl("stopp", pod)
    crictl("rmp", pod)

    debian.run("apt-get", "remove", "-y", "dockershim")
    assert "stop dockershim.socket dockershim.service" in debian.asked_of_systemd()
    assert files(debian) - before >= {CONFIG, "var/lib/dockershim"}
    debian.run("apt-get", "purge", "-y", "dockershim")
    assert files(debian) ^ before == set()
    assert [path.name for path in Path("/run").glob("dockershim") if path.is_dir()] == []
