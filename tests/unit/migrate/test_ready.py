"""How it is known that a kubelet is Ready."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dockershim.changes.disk import ChangeError
from dockershim.doctor.kubelet import parse_mapping
from dockershim.migrate import command, ready
from dockershim.migrate.ready import Node, Unreadable

KUBECONFIG = """\
apiVersion: v1
clusters:
- cluster: {certificate-authority-data: "", server: "https://10.0.0.1:6443"}
  name: a
contexts:
- context: {cluster: a, user: b}
  name: b@a
current-context: b@a
users:
- name: b
  user: {client-certificate: /pki/kubelet.pem, client-key: /pki/kubelet.pem}
"""
PEM = "-----BEGIN CERTIFICATE-----\n"


class Waiting:
    """A clock, and what a kubelet reports at each look; the last report stays."""

    def __init__(self, *reports: tuple[str, Node | None]) -> None:
        self.reports = list(reports)
        self.seconds = 0.0

    def health(self) -> str:
        return self.reports[0][0]

    def node(self) -> Node:
        _, node = self.reports.pop(0) if len(self.reports) > 1 else self.reports[0]
        if node is None:
            raise Unreadable("HTTP status 403")
        return node

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds

    def until_ready(self) -> str:
        return ready.wait_until_ready(self.health, self.node, 1000.7, clock=lambda: self.seconds, sleep=self.sleep)


def test_a_report_from_before_does_not_count() -> None:
    waiting = Waiting(("", Node("a", ready=True, heartbeat=999)), ("", Node("a", ready=True, heartbeat=1000)))
    assert waiting.until_ready() == "Node a is Ready"
    assert waiting.seconds == 1


def test_a_healthy_kubelet_is_enough_where_its_node_cannot_be_read() -> None:
    waiting = Waiting(("", None))
    assert waiting.until_ready() == "the kubelet is healthy; its Node cannot be read: HTTP status 403"
    assert waiting.seconds == 30


@pytest.mark.parametrize(
    ("report", "said"),
    [
        pytest.param(("", Node("a", ready=False, heartbeat=1000, message="PLEG")), "PLEG", id="not ready"),
        pytest.param(("", Node("a", ready=True, heartbeat=999)), "Node a has no report of it yet", id="no report"),
        pytest.param(("refused", None), "refused", id="it does not run"),
    ],
)
def test_it_waits_for_two_minutes(report: tuple[str, Node | None], said: str) -> None:
    waiting = Waiting(report)
    with pytest.raises(ChangeError, match=f"the kubelet is not Ready after 120 s: {said}"):
        waiting.until_ready()
    assert waiting.seconds == 120


def document(**status: object) -> bytes:
    condition = {"type": "Ready", "status": "True", "lastHeartbeatTime": "2026-11-26T10:00:00Z", **status}
    metadata = {"annotations": {ready.ANNOTATION: "unix:///a"}}
    return json.dumps({"metadata": metadata, "status": {"conditions": [condition]}}).encode()


def test_a_node() -> None:
    assert ready.to_node("a", document()) == Node("a", ready=True, heartbeat=1795687200.0, socket="unix:///a")
    assert ready.to_node("a", document(status="Unknown", message="m")).message == "m"


@given(st.binary() | st.sampled_from([b"[]", b"{}", b'{"status": {"conditions": [1]}}', document(lastHeartbeatTime=7)]))
def test_any_other_answer_is_refused(body: bytes) -> None:
    with pytest.raises(Unreadable, match="the answer is not a Node"):
        ready.to_node("a", body)


def access(text: str) -> ready.Access:
    return ready.read_access(parse_mapping(text))


def test_the_kubeconfig_of_kubeadm() -> None:
    found = access(KUBECONFIG.replace('""', base64.b64encode(PEM.encode()).decode()))
    assert (found.host, found.port, found.authority) == ("10.0.0.1", 6443, PEM)
    assert (found.certificate_file, found.key_file) == ("/pki/kubelet.pem", "/pki/kubelet.pem")
    assert found.headers() == {}


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("https", "http", "must be an https:// address"),
        ("b@a\nusers", "c\nusers", "contexts has no 'c'"),
        ("client-certificate:", "exec:", "neither a client certificate"),
        ("server:", "insecure-skip-tls-verify: true, server:", "is not verified"),
        ('""', "'*'", "PEM in base64"),
        ("clusters:\n-", "clusters: 7\nmore:\n-", "clusters has no 'a'"),
        ('"https://10.0.0.1:6443"', "7", "server must be a string"),
    ],
)
def test_a_kubeconfig_that_is_not_used(old: str, new: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        access(KUBECONFIG.replace(old, new))


def test_a_token(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("secret\n")
    text = KUBECONFIG.replace("client-certificate: /pki/kubelet.pem", f"tokenFile: {tmp_path}/token")
    assert access(text).headers() == {"Authorization": "Bearer secret"}


@pytest.fixture
def port() -> Iterator[int]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/healthz" else 500)
            self.end_headers()
            self.wfile.write(b"ok")

        def log_message(self, *_: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


def test_health(port: int, tmp_path: Path) -> None:
    assert ready.check_health(["kubelet", f"--healthz-port={port}"]) == ""
    (tmp_path / "config.yaml").write_text(f"healthzPort: {port}\n")
    assert ready.check_health(["kubelet", f"--config={tmp_path}/config.yaml"]) == ""
    (tmp_path / "config.yaml").write_text("healthzPort: [1]\n")
    assert "does not answer" in ready.check_health(["kubelet", f"--config={tmp_path}/config.yaml"])
    assert "Connection refused" in ready.check_health(["kubelet", "--healthz-port=1"])


def test_a_kubelet_without_a_kubeconfig(tmp_path: Path) -> None:
    with pytest.raises(Unreadable, match="has no --kubeconfig"):
        ready.read_node(["kubelet"])
    with pytest.raises(Unreadable, match="cannot be read"):
        ready.read_node(["kubelet", f"--kubeconfig={tmp_path}/none"])


def test_a_kubelet_that_has_just_been_started_is_known_by_its_command_line_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """systemd says that it has started the kubelet while the process is still a copy of systemd."""
    lines = iter([["(kubelet)"], ["(kubelet)"]])

    def read_node(words: Sequence[str]) -> Node:
        if words != ["kubelet", "--kubeconfig=a"]:
            raise Unreadable("the kubelet has no --kubeconfig")
        return Node("a", ready=True, heartbeat=1e10)

    monkeypatch.setattr(command, "_kubelet", lambda: (next(lines, ["kubelet", "--kubeconfig=a"]), 1.0))
    monkeypatch.setattr(ready, "check_health", lambda _: "")
    monkeypatch.setattr(ready, "read_node", read_node)
    monkeypatch.setattr(ready, "_PAUSE", 0.0)
    assert command._wait_until_ready() == "Node a is Ready"
