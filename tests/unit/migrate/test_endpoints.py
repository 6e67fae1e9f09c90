"""Where files name a socket, and what is put in its place."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dockershim.migrate.endpoints import flag, replace_endpoint, socket_path

OLD, NEW = "/run/cri-dockerd.sock", "unix:///run/dockershim.sock"


@pytest.mark.parametrize(
    ("text", "replaced", "value"),
    [
        pytest.param(
            'KUBELET_KUBEADM_ARGS="--container-runtime-endpoint=unix:///var/run/cri-dockerd.sock --v=2"\n',
            f'KUBELET_KUBEADM_ARGS="--container-runtime-endpoint={NEW} --v=2"\n',
            "unix:///var/run/cri-dockerd.sock",
            id="kubeadm-flags.env",
        ),
        pytest.param(
            "A=--container-runtime-endpoint /run/cri-dockerd.sock",
            f"A=--container-runtime-endpoint {NEW}",
            "/run/cri-dockerd.sock",
            id="two words, a path, and no end of the line",
        ),
        pytest.param(
            "ExecStart=/usr/bin/kubelet \\\n  --container-runtime-endpoint \\\n  unix:///run/cri-dockerd.sock \\\n",
            f"ExecStart=/usr/bin/kubelet \\\n  --container-runtime-endpoint \\\n  {NEW} \\\n",
            "unix:///run/cri-dockerd.sock",
            id="a unit",
        ),
        pytest.param(
            "a: 1\ncontainerRuntimeEndpoint:   unix:///run/cri-dockerd.sock  # why\r\nb: 2",
            f"a: 1\ncontainerRuntimeEndpoint:   {NEW}  # why\r\nb: 2",
            "unix:///run/cri-dockerd.sock",
            id="the kubelet's configuration",
        ),
        pytest.param(
            '{"imageServiceEndpoint":"unix:///run/cri-dockerd.sock","containerRuntimeEndpoint":"/var/run/cri-dockerd.sock"}',
            f'{{"imageServiceEndpoint":"{NEW}","containerRuntimeEndpoint":"{NEW}"}}',
            "unix:///run/cri-dockerd.sock",
            id="as JSON, twice",
        ),
        pytest.param(
            "runtime-endpoint: 'unix:///run/cri-dockerd.sock'\nimage-endpoint: unix:///run/cri-dockerd.sock\n",
            f"runtime-endpoint: '{NEW}'\nimage-endpoint: {NEW}\n",
            "unix:///run/cri-dockerd.sock",
            id="crictl",
        ),
        pytest.param("# containerRuntimeEndpoint: unix:///run/cri-dockerd.sock\n", None, "", id="a comment"),
        pytest.param("containerRuntimeEndpoint: unix:///run/cri-dockerd.sock2\n", None, "", id="another socket"),
        pytest.param("containerRuntimeEndpoint: unix:///run/containerd/containerd.sock\n", None, "", id="containerd"),
        pytest.param("motd: unix:///run/cri-dockerd.sock\n", None, "", id="another setting"),
        pytest.param("", None, "", id="nothing"),
    ],
)
def test_the_value_is_replaced_and_nothing_else(text: str, replaced: str | None, value: str) -> None:
    assert replace_endpoint(text, OLD, NEW) == (text if replaced is None else replaced, value)


@given(st.text())
def test_any_text_without_the_socket_stays(text: str) -> None:
    assert replace_endpoint(text, OLD, NEW) == (text, "")


@pytest.mark.parametrize(
    ("endpoint", "path"),
    [
        ("unix:///var/run/cri-dockerd.sock", OLD),
        (OLD, OLD),
        ("unix:///srv/a.sock", "/srv/a.sock"),
        ("fd://", ""),
        ("tcp://1.2.3.4:5", ""),
        ("", ""),
    ],
)
def test_paths_of_endpoints(endpoint: str, path: str) -> None:
    assert socket_path(endpoint) == path


def test_the_last_one_of_several_flags_counts() -> None:
    assert flag(["kubelet", "--a=1", "--b", "2", "--a", "3"], "a") == "3"
    assert flag(["kubelet", "--ab=1"], "a") == ""
    assert flag(["kubelet", "--a"], "a") == ""
