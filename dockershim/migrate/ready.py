"""Whether the kubelet is Ready: its own health, and the condition of its Node as the API server has it.

The Node is read with the kubelet's own credentials, which may read it, so no others are needed. Where that is
impossible (no kubeconfig, credentials of a plugin, no API server), a healthy kubelet is enough.
"""

from __future__ import annotations

import base64
import binascii
import http.client
import json
import os
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlsplit

from dockershim.changes.disk import ChangeError
from dockershim.doctor.kubelet import CONFIGURATION, parse_mapping
from dockershim.doctor.node_files import text
from dockershim.migrate.endpoints import flag

#: Where kubeadm notes the socket in the Node.
ANNOTATION: Final = "kubeadm.alpha.kubernetes.io/cri-socket"
#: Seconds: until the kubelet must be Ready, between two looks, and for one of them. After so many seconds of health the
#: Node need not be readable.
PATIENCE: Final = 120.0
_PAUSE: Final = 1.0
_DEADLINE: Final = 5.0
_WITHOUT_NODE: Final = 30.0
_HEALTH_PORT: Final = 10248
#: Bytes of a Node, which names the images of the machine.
_LONGEST: Final = 8 << 20


class Unreadable(Exception):
    """The Node cannot be read; the text has the reason."""


@dataclass(frozen=True, slots=True)
class Node:
    """The Node object. ``heartbeat`` is when the kubelet reported its condition last, in seconds since 1970.

    ``message`` is why it is not ready, ``socket`` the value of kubeadm's annotation, empty without one.
    """

    name: str
    ready: bool
    heartbeat: float = 0.0
    message: str = ""
    socket: str = ""


def wait_until_ready(
    health: Callable[[], str],
    node: Callable[[], Node],
    since: float,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> str:
    """Wait until the Node is Ready by a report that is not older than ``since``; how that is known, in words.

    ``health`` is ``check_health``; ``node`` raises Unreadable. Raises ChangeError after ``PATIENCE``.
    """
    begun = clock()
    while True:
        problem = health()
        try:
            found = node()
        except Unreadable as error:
            if not problem and clock() - begun >= _WITHOUT_NODE:
                return f"the kubelet is healthy; its Node cannot be read: {error}"
            said = problem or f"its Node cannot be read: {error}"
        else:
            # The API server has whole seconds.
            if found.ready and found.heartbeat >= int(since):
                return f"Node {found.name} is Ready"
            said = problem or found.message or f"Node {found.name} has no report of it yet"
        if clock() - begun >= PATIENCE:
            raise ChangeError(f"the kubelet is not Ready after {PATIENCE:g} s: {said}")
        sleep(_PAUSE)


def check_health(words: Sequence[str]) -> str:
    """Why a kubelet with this command line is not healthy; empty if it is. Never raises."""
    port = flag(words, "healthz-port") or _configuration(words).get("healthzPort", _HEALTH_PORT)
    try:
        connection = http.client.HTTPConnection("127.0.0.1", int(port), timeout=_DEADLINE)
        status, body = _get(connection, "/healthz", {})
    except (OSError, ValueError, TypeError, OverflowError, http.client.HTTPException) as error:
        return f"it does not answer on 127.0.0.1:{port}: {error}"
    return "" if status == http.HTTPStatus.OK else f"it is not healthy: {body[:200].decode(errors='replace')}"


def _configuration(words: Sequence[str]) -> Mapping[str, Any]:
    try:
        return parse_mapping(text(Path(flag(words, "config") or CONFIGURATION)))
    except ValueError:
        return {}


def read_node(words: Sequence[str]) -> Node:
    """The Node of a kubelet with this command line. Raises Unreadable."""
    name = (flag(words, "hostname-override") or os.uname().nodename).lower()
    path = flag(words, "kubeconfig")
    if not path:
        raise Unreadable("the kubelet has no --kubeconfig")
    try:
        access = read_access(parse_mapping(text(Path(path))))
        connection = http.client.HTTPSConnection(access.host, access.port, timeout=_DEADLINE, context=access.context())
        status, body = _get(connection, f"{access.path}/api/v1/nodes/{quote(name, safe='')}", access.headers())
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise Unreadable(f"{path}: {error}") from error
    if status != http.HTTPStatus.OK:
        raise Unreadable(f"{access.host}: Node {name}: HTTP status {status}")
    return to_node(name, body)


def _get(connection: http.client.HTTPConnection, path: str, headers: Mapping[str, str]) -> tuple[int, bytes]:
    try:
        connection.request("GET", path, headers={"Accept": "application/json", **headers})
        answer = connection.getresponse()
        return answer.status, answer.read(_LONGEST)
    finally:
        connection.close()


def to_node(name: str, body: bytes) -> Node:
    """A Node from the API server's JSON. Raises Unreadable."""
    try:
        document = json.loads(body)
        conditions = {one["type"]: one for one in document["status"]["conditions"]}
        ready = conditions["Ready"]
        heartbeat = datetime.fromisoformat(ready["lastHeartbeatTime"]).timestamp()
        annotations = document["metadata"].get("annotations") or {}
        socket = annotations.get(ANNOTATION) or ""
        return Node(name, ready["status"] == "True", heartbeat, str(ready.get("message", "")), str(socket))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise Unreadable(f"Node {name}: the answer is not a Node with a condition Ready ({error!r})") from error


@dataclass(frozen=True, slots=True)
class Access:
    """How a kubeconfig reaches the API server. Files may be empty: not given."""

    host: str
    port: int
    path: str = ""
    authority: str = ""
    authority_file: str = ""
    certificate_file: str = ""
    key_file: str = ""
    token: str = ""
    token_file: str = ""

    def context(self) -> ssl.SSLContext:
        """Raises OSError for a file that cannot be read."""
        context = ssl.create_default_context(cafile=self.authority_file or None, cadata=self.authority or None)
        if self.certificate_file:
            # Without a password, OpenSSL would ask the terminal for the one of an encrypted key.
            context.load_cert_chain(self.certificate_file, self.key_file or None, password="")
        return context

    def headers(self) -> dict[str, str]:
        token = self.token
        if self.token_file:
            token = (text(Path(self.token_file)) or "").strip()
        return {"Authorization": f"Bearer {token}"} if token else {}


def read_access(document: Mapping[str, Any]) -> Access:
    """The access of the current context of a kubeconfig. Raises ValueError for what is not supported here."""
    context = _named(document, "contexts", "context", document.get("current-context"))
    cluster = _named(document, "clusters", "cluster", context.get("cluster"))
    user = _named(document, "users", "user", context.get("user"))
    server = urlsplit(_text(cluster, "server"))
    if server.scheme != "https" or not server.hostname:
        raise ValueError("the server must be an https:// address")
    if cluster.get("insecure-skip-tls-verify") or cluster.get("proxy-url") or cluster.get("tls-server-name"):
        raise ValueError("a server that is not verified by its own name, or behind a proxy, is not asked")
    access = Access(
        host=server.hostname,
        port=server.port or 443,
        path=server.path.rstrip("/"),
        authority=_decoded(cluster, "certificate-authority-data"),
        authority_file=_text(cluster, "certificate-authority"),
        certificate_file=_text(user, "client-certificate"),
        key_file=_text(user, "client-key"),
        token=_text(user, "token"),
        token_file=_text(user, "tokenFile"),
    )
    if not (access.certificate_file or access.token or access.token_file):
        raise ValueError("the user has neither a client certificate in a file nor a token")
    return access


def _named(document: Mapping[str, Any], kind: str, key: str, name: object) -> Mapping[str, Any]:
    listed = document.get(kind)
    for one in listed if isinstance(listed, list) else ():
        if isinstance(one, dict) and one.get("name") == name and isinstance(one.get(key), dict):
            found: Mapping[str, Any] = one[key]
            return found
    raise ValueError(f"{kind} has no {name!r}")


def _text(document: Mapping[str, Any], key: str) -> str:
    value = document.get(key) or ""
    if not isinstance(value, str):
        raise ValueError(f"{key} must be a string")
    return value


def _decoded(document: Mapping[str, Any], key: str) -> str:
    try:
        return base64.b64decode(_text(document, key), validate=True).decode("ascii")
    except (binascii.Error, UnicodeDecodeError) as error:
        raise ValueError(f"{key} must be PEM in base64: {error}") from error
