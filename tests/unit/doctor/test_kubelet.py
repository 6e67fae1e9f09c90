"""What doctor reads in the kubelet's files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dockershim.doctor import kubelet
from dockershim.doctor.kubelet import Kubelet, Setting, check_kubelet, check_swap, read_kubelet
from tests.unit.doctor.levels import fixes, levels
from tests.unit.translate.kubelet import ENGINE_28

OURS = "unix:///run/dockershim.sock"
KUBEADMS = 'KUBELET_KUBEADM_ARGS="--container-runtime-endpoint=unix:///a.sock --cgroup-driver systemd"\n'


def read(folder: Path, config: str | None = None, flags: str | None = None) -> Kubelet | None:
    if config is not None:
        (folder / "config.yaml").write_text(config)
    if flags is not None:
        (folder / "flags.env").write_text(flags)
    return read_kubelet(folder / "config.yaml", (folder / "none.env", folder / "flags.env"), (folder / "units",))


@pytest.mark.parametrize(
    ("config", "flags", "endpoint", "driver", "swap"),
    [
        pytest.param("cgroupDriver: systemd\n", None, None, "systemd", True, id="configuration"),
        pytest.param('{"cgroupDriver": "cgroupfs"}', None, None, "cgroupfs", True, id="as JSON"),
        pytest.param("containerRuntimeEndpoint: unix:///b\n", KUBEADMS, "unix:///a.sock", "systemd", True, id="flags"),
        pytest.param("failSwapOn: false\n", None, None, None, False, id="swap allowed"),
        pytest.param("{}", "X='--fail-swap-on=false'", None, None, False, id="swap allowed by a flag"),
        pytest.param("cgroupDriver: [1]\nfailSwapOn: maybe\n", "# X=--cgroup-driver=a\n", None, None, True, id="odd"),
        pytest.param("{}", "no line\nX='unclosed\n=", None, None, True, id="odd flags"),
        pytest.param(None, KUBEADMS, "unix:///a.sock", "systemd", True, id="flags alone"),
    ],
)
def test_the_settings(
    config: str | None, flags: str | None, endpoint: str | None, driver: str | None, swap: bool, tmp_path: Path
) -> None:
    found = read(tmp_path, config, flags)
    assert found is not None
    assert (found.endpoint.value if found.endpoint else None) == endpoint
    assert (found.cgroup_driver.value if found.cgroup_driver else None) == driver
    assert (found.fail_swap_on, found.problem) == (swap, "")


def test_a_node_without_a_kubelet(tmp_path: Path) -> None:
    assert read(tmp_path) is None
    assert levels(check_kubelet(None, OURS, ENGINE_28)) == {"kubelet": "ok"}


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"[" * 60_000, id="nested"),
        pytest.param(b"\xff\xfe\x00\x01", id="binary"),
        pytest.param(b"- a\n- b\n", id="a list"),
        pytest.param(b"a: " + b"x" * 70_000, id="long"),
        pytest.param(b"a: !!python/object/apply:os.system [true]", id="an object"),
    ],
)
def test_a_file_that_cannot_be_used_is_named(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_bytes(content)
    findings = list(check_kubelet(read(tmp_path), OURS, ENGINE_28))
    assert levels(findings) == {"kubelet": "fail"}
    assert str(tmp_path / "config.yaml") in findings[0].message


@given(st.binary(max_size=200))
def test_no_content_of_a_file_of_flags_is_an_error(content: bytes) -> None:
    assert all(isinstance(value, str) for _, value in kubelet._flags(content.decode(errors="replace")))


@pytest.mark.parametrize(
    ("endpoint", "level"),
    [
        pytest.param("unix:///run/dockershim.sock", "ok", id="ours"),
        pytest.param("/var/run/dockershim.sock", "ok", id="ours by another name"),
        pytest.param("unix:///run/cri-dockerd.sock", "fail", id="another"),
        pytest.param(None, "warn", id="not set"),
    ],
)
def test_the_endpoint(endpoint: str | None, level: str) -> None:
    setting = Setting(endpoint, Path("/a.env")) if endpoint else None
    findings = list(check_kubelet(Kubelet(endpoint=setting), OURS, None))
    assert levels(findings) == {"kubelet's endpoint": level}
    assert OURS in (fixes(findings) or OURS)


@pytest.mark.parametrize(
    ("driver", "engines", "level"),
    [
        pytest.param("systemd", "systemd", "ok", id="same"),
        pytest.param("cgroupfs", "systemd", "fail", id="other"),
        pytest.param(None, "systemd", "ok", id="not set"),
    ],
)
def test_the_cgroup_driver(driver: str | None, engines: str, level: str) -> None:
    path = Path("/var/lib/kubelet/config.yaml")
    found = Kubelet(Setting(OURS, path), Setting(driver, path) if driver else None)
    findings = list(check_kubelet(found, OURS, replace(ENGINE_28, cgroup_driver=engines)))
    assert levels(findings)["kubelet's cgroup driver"] == level
    assert f"cgroupDriver: {engines} in {path}" in (fixes(findings) or f"cgroupDriver: {engines} in {path}")


@pytest.mark.parametrize(
    ("swaps", "found", "level"),
    [
        pytest.param("Filename Type\n", Kubelet(), "ok", id="off"),
        pytest.param("Filename Type\n/swap file 1\n", Kubelet(), "fail", id="on"),
        pytest.param("Filename Type\n/swap file 1\n", Kubelet(fail_swap_on=False), "ok", id="allowed"),
        pytest.param("Filename Type\n/swap file 1\n", None, "ok", id="no kubelet"),
        pytest.param("", Kubelet(), "ok", id="a kernel without swap"),
    ],
)
def test_swap(swaps: str, found: Kubelet | None, level: str) -> None:
    findings = list(check_swap(swaps, found))
    assert levels(findings) == {"swap": level}
    assert ("swapoff -a" in fixes(findings)) is (level == "fail")


KUBEADM = "[Service]\nExecStart=\nExecStart=/usr/bin/kubelet $A \\\n  $B\n"


def units(folder: Path, name: str, content: str) -> None:
    file = folder / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(content)


def test_the_last_command_of_the_unit_counts(tmp_path: Path) -> None:
    own, packaged = tmp_path / "units", tmp_path / "usr"
    assert kubelet.read_command((own, packaged)) is None
    units(packaged, "kubelet.service", "[Service]\nExecStart=/usr/bin/kubelet\n")
    assert kubelet.read_command((own, packaged)) == Setting("/usr/bin/kubelet", packaged / "kubelet.service")
    units(packaged, "kubelet.service.d/10-kubeadm.conf", KUBEADM)
    units(own, "kubelet.service.d/20-odd.conf", "[Service]\nExecStart=/k 'unclosed\n")
    found = kubelet.read_command((own, packaged))
    assert found == Setting("/usr/bin/kubelet $A $B", packaged / "kubelet.service.d/10-kubeadm.conf")
    units(own, "kubelet.service.d/10-kubeadm.conf", "[Service]\nExecStart=/mine\n")
    assert kubelet.read_command((own, packaged)) == Setting("/mine", own / "kubelet.service.d/10-kubeadm.conf")


def test_a_kubelet_without_any_setting_has_no_endpoint(tmp_path: Path) -> None:
    units(tmp_path / "units", "kubelet.service", "[Service]\nExecStart=/usr/bin/kubelet\n")
    assert levels(check_kubelet(read(tmp_path), OURS, ENGINE_28))["kubelet's endpoint"] == "warn"
    units(tmp_path / "units", "kubelet.service.d/a.conf", f"ExecStart=/k --container-runtime-endpoint={OURS}\n")
    assert levels(check_kubelet(read(tmp_path), OURS, ENGINE_28))["kubelet's endpoint"] == "ok"


@pytest.mark.parametrize(
    ("settings", "installed", "level"),
    [
        pytest.param(None, False, "ok", id="not installed"),
        pytest.param(None, True, "warn", id="no file"),
        pytest.param("timeout: 1\n", True, "warn", id="no endpoint"),
        pytest.param("runtime-endpoint: unix:///var/run/dockershim.sock\n", True, "ok", id="ours"),
        pytest.param("runtime-endpoint: unix:///run/containerd/containerd.sock\n", True, "warn", id="another"),
        pytest.param("runtime-endpoint: [1]\n", True, "warn", id="odd"),
        pytest.param("[", True, "warn", id="not YAML"),
    ],
)
def test_crictl(settings: str | None, installed: bool, level: str) -> None:
    findings = list(kubelet.check_crictl(settings, OURS, installed=installed))
    assert levels(findings) == {"crictl": level}
    assert (OURS in fixes(findings)) == (level == "warn")
