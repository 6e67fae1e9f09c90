from __future__ import annotations

import base64
import contextlib
import json
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dockershim.api.cri.v1 import api_pb2
from dockershim.engine.credentials import Credentials, NodeCredentials, default_files, from_cri
from dockershim.errors import InvalidArgument


def basic(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


@pytest.mark.parametrize(
    ("auth", "expected"),
    [
        pytest.param(api_pb2.AuthConfig(), None, id="nothing"),
        pytest.param(api_pb2.AuthConfig(server_address="gcr.io"), None, id="an-address-alone"),
        pytest.param(api_pb2.AuthConfig(username="u", password="p"), Credentials("u", "p"), id="user-and-password"),
        pytest.param(
            api_pb2.AuthConfig(username="u", password="p", server_address="gcr.io"),
            Credentials("u", "p", server_address="gcr.io"),
            id="with-address",
        ),
        pytest.param(api_pb2.AuthConfig(auth=basic("u:p:q")), Credentials("u", "p:q"), id="colon-in-a-password"),
        pytest.param(api_pb2.AuthConfig(auth=basic("u:p\0\0")), Credentials("u", "p"), id="padded-password"),
        pytest.param(api_pb2.AuthConfig(auth=basic("u:")), Credentials("u"), id="empty-password"),
        pytest.param(
            api_pb2.AuthConfig(username="u", password="p", auth=basic("v:q")), Credentials("u", "p"), id="fields-win"
        ),
        pytest.param(api_pb2.AuthConfig(identity_token="t"), Credentials(identity_token="t"), id="identity-token"),
        pytest.param(api_pb2.AuthConfig(registry_token="t"), Credentials(registry_token="t"), id="registry-token"),
    ],
)
def test_a_requests_credentials_are_taken(auth: api_pb2.AuthConfig, expected: Credentials | None) -> None:
    assert from_cri(auth, "gcr.io") == expected


@pytest.mark.parametrize("auth", ["%%%", basic("no colon"), basic(":p"), base64.b64encode(b"\xff:p").decode()])
def test_an_auth_field_that_is_something_else_is_refused(auth: str) -> None:
    with pytest.raises(InvalidArgument, match=r"auth\.auth"):
        from_cri(api_pb2.AuthConfig(auth=auth), "gcr.io")


def test_a_password_without_a_user_is_refused() -> None:
    with pytest.raises(InvalidArgument, match=r"auth\.password: requires auth\.username"):
        from_cri(api_pb2.AuthConfig(password="p"), "gcr.io")


@pytest.mark.parametrize(
    ("address", "registry", "right"),
    [
        pytest.param("gcr.io", "gcr.io", True, id="a-domain"),
        pytest.param("https://r.example:5000/v2/", "r.example:5000", True, id="a-url-with-a-port"),
        pytest.param("https://index.docker.io/v1/", "docker.io", True, id="the-hubs-name-in-files"),
        pytest.param("docker.io", "docker.io", True, id="the-hubs-own-name"),
        pytest.param("r.example", "r.example:5000", False, id="another-port"),
        pytest.param("https://gcr.io.example/", "gcr.io", False, id="a-longer-name"),
        pytest.param("evil.example/gcr.io", "gcr.io", False, id="the-name-in-a-path"),
        pytest.param("https://", "gcr.io", False, id="no-name"),
    ],
)
def test_credentials_are_shown_to_their_own_registry_only(address: str, registry: str, right: bool) -> None:
    auth = api_pb2.AuthConfig(username="u", password="p", server_address=address)
    with contextlib.nullcontext() if right else pytest.raises(InvalidArgument, match=r"auth\.server_address"):
        assert from_cri(auth, registry) == Credentials("u", "p", server_address=address)


@pytest.mark.parametrize(
    ("credentials", "expected"),
    [
        pytest.param(Credentials("u", "pä?>"), {"username": "u", "password": "pä?>"}, id="user-and-password"),
        pytest.param(Credentials(identity_token="t"), {"identitytoken": "t"}, id="identity-token"),
        pytest.param(
            Credentials(registry_token="t", server_address="gcr.io"),
            {"registrytoken": "t", "serveraddress": "gcr.io"},
            id="registry-token",
        ),
    ],
)
def test_the_header_is_what_an_engine_reads(credentials: Credentials, expected: dict[str, str]) -> None:
    assert json.loads(base64.b64decode(credentials.header(), altchars=b"-_", validate=True)) == expected


def test_no_secret_shows_in_a_log() -> None:
    assert "secret" not in repr(Credentials("u", "secret", "secret", "secret"))


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        pytest.param({"HOME": "/home/a"}, "/home/a/.docker/config.json", id="home"),
        pytest.param({"HOME": "/home/a", "DOCKER_CONFIG": "/etc/d"}, "/etc/d/config.json", id="docker-config"),
        pytest.param({}, "/.docker/config.json", id="no-home-under-a-service-manager"),
    ],
)
def test_the_files_are_those_of_docker_and_of_kubelets(environment: dict[str, str], expected: str) -> None:
    assert default_files(environment) == (Path(expected), Path("/var/lib/kubelet/config.json"))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "config.json"


def write(path: Path, config: object) -> None:
    path.write_text(json.dumps(config))


@pytest.mark.parametrize(
    ("config", "registry", "expected"),
    [
        pytest.param(
            {"auths": {"gcr.io": {"auth": basic("u:p")}}},
            "gcr.io",
            Credentials("u", "p", server_address="gcr.io"),
            id="registry",
        ),
        pytest.param(
            {"auths": {"https://r.example:5000/v2/": {"auth": basic("u:p")}}},
            "r.example:5000",
            Credentials("u", "p", server_address="https://r.example:5000/v2/"),
            id="registry-written-as-a-url",
        ),
        pytest.param(
            {"auths": {"https://index.docker.io/v1/": {"auth": basic("u:p")}}},
            "docker.io",
            Credentials("u", "p", server_address="https://index.docker.io/v1/"),
            id="docker-hub",
        ),
        pytest.param(
            {"auths": {"gcr.io": {"identitytoken": "t", "auth": basic("u:")}}},
            "gcr.io",
            Credentials(identity_token="t"),
            id="identity-token",
        ),
        pytest.param({"auths": {"gcr.io": {"auth": basic("u:p")}}}, "quay.io", None, id="other-registry"),
        pytest.param({"auths": {"gcr.io": {}}}, "gcr.io", None, id="entry-without-content"),
        pytest.param({}, "gcr.io", None, id="empty-file"),
        pytest.param({"HttpHeaders": {"a": "b"}}, "gcr.io", None, id="file-about-other-things"),
    ],
)
async def test_a_configuration_file_is_read(
    file: Path, config: object, registry: str, expected: Credentials | None
) -> None:
    write(file, config)
    assert await NodeCredentials([file]).find(registry) == expected


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"{", id="not-json"),
        pytest.param(b"[]", id="not-an-object"),
        pytest.param(b"\xff\xfe\xff", id="not-text"),
        pytest.param(b'{"auths":{"gcr.io":{"auth":"%%%"}}}', id="not-base64"),
        pytest.param(b'{"auths":{"gcr.io":{"auth":7}}}', id="auth-of-another-type"),
        pytest.param(b'{"auths":{"gcr.io":7}}', id="entry-of-another-type"),
        pytest.param(b'{"auths":7}', id="auths-of-another-type"),
        pytest.param(b'{"credHelpers":7}', id="helpers-of-another-type"),
        pytest.param(b'{"credsStore":"not-there"}', id="helper-that-is-not-installed"),
    ],
)
async def test_a_file_that_cannot_be_used_does_not_hide_the_next_one(
    tmp_path: Path, file: Path, content: bytes
) -> None:
    file.write_bytes(content)
    second = tmp_path / "second.json"
    write(second, {"auths": {"gcr.io": {"auth": basic("u:p")}}})
    assert await NodeCredentials([tmp_path / "none", file, second]).find("gcr.io") == Credentials(
        "u", "p", server_address="gcr.io"
    )


@pytest.fixture
def helper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The path of a credential helper named ``test``, which a test writes."""
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    return tmp_path / "docker-credential-test"


def write_helper(path: Path, body: str) -> None:
    path.write_text(f"#!/bin/sh\nread server\n{body}\n")
    path.chmod(0o755)


ANSWER = """[ "$1" = get ] && printf '{"ServerURL":"%s","Username":"u","Secret":"p"}' "$server\""""


@pytest.mark.parametrize(
    ("config", "registry", "expected"),
    [
        pytest.param(
            {"credHelpers": {"gcr.io": "test"}}, "gcr.io", Credentials("u", "p", server_address="gcr.io"), id="helper"
        ),
        pytest.param({"credHelpers": {"gcr.io": "test"}}, "quay.io", None, id="helper-of-another-registry"),
        pytest.param(
            {"credsStore": "test"}, "quay.io", Credentials("u", "p", server_address="quay.io"), id="store-for-all"
        ),
        pytest.param(
            {"credsStore": "test"},
            "docker.io",
            Credentials("u", "p", server_address="https://index.docker.io/v1/"),
            id="docker-hub-by-its-old-address",
        ),
    ],
)
async def test_a_helper_is_asked(
    file: Path, helper: Path, config: object, registry: str, expected: Credentials | None
) -> None:
    write(file, config)
    write_helper(helper, ANSWER)
    assert await NodeCredentials([file]).find(registry) == expected


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        pytest.param(
            """echo '{"ServerURL":"gcr.io","Username":"<token>","Secret":"t"}'""",
            Credentials(identity_token="t", server_address="gcr.io"),
            id="identity-token",
        ),
        pytest.param("echo credentials not found in native keychain; exit 1", None, id="has-none"),
        pytest.param("""echo '{"ServerURL":"","Username":"","Secret":""}'""", None, id="has-none-and-says-so-in-json"),
        pytest.param("echo hello", None, id="not-json"),
        pytest.param("echo '{}'", None, id="json-of-another-shape"),
        pytest.param("exec 0<&-; kill -9 $$", None, id="killed"),
    ],
)
async def test_what_a_helper_answers(file: Path, helper: Path, body: str, expected: Credentials | None) -> None:
    write(file, {"credsStore": "test"})
    write_helper(helper, body)
    assert await NodeCredentials([file]).find("gcr.io") == expected


async def test_without_an_answer_of_the_helper_the_entry_in_the_file_counts(file: Path, helper: Path) -> None:
    write(file, {"credsStore": "test", "auths": {"gcr.io": {"auth": basic("u:p")}}})
    write_helper(helper, "exit 1")
    assert await NodeCredentials([file]).find("gcr.io") == Credentials("u", "p", server_address="gcr.io")


async def test_a_helper_that_hangs_is_ended(file: Path, helper: Path, tmp_path: Path) -> None:
    write(file, {"credsStore": "test"})
    write_helper(helper, f"echo $$ > {tmp_path}/pid; exec sleep 60")
    started = time.monotonic()
    assert await NodeCredentials([file], helper_timeout=0.5).find("gcr.io") is None
    assert time.monotonic() - started < 3
    assert not Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}").exists()


@pytest.mark.parametrize(
    ("mode", "reason"),
    [
        pytest.param(None, "docker-credential-test is not in PATH", id="missing"),
        pytest.param(0o644, "docker-credential-test is not executable", id="not-executable"),
    ],
)
async def test_a_helper_that_cannot_be_started_is_named(
    file: Path, helper: Path, caplog: pytest.LogCaptureFixture, mode: int | None, reason: str
) -> None:
    write(file, {"credsStore": "test"})
    if mode is not None:
        write_helper(helper, "exit 0")
        helper.chmod(mode)
    assert await NodeCredentials([file]).find("gcr.io") is None
    assert reason in caplog.text


def test_the_docker_package_is_not_loaded_without_a_file(tmp_path: Path) -> None:
    program = (
        "import asyncio, pathlib, sys\n"
        "from dockershim.engine.credentials import NodeCredentials\n"
        f"assert asyncio.run(NodeCredentials([pathlib.Path({str(tmp_path / 'none')!r})]).find('gcr.io')) is None\n"
        "assert 'docker' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize(
    "address",
    ["https://user:PASS@gcr.io.example/v2/", "user:PASS@gcr.io.example", "https://user:PA@SS@gcr.io.example"],
)
def test_an_address_is_quoted_without_its_password(address: str) -> None:
    auth = api_pb2.AuthConfig(username="u", password="p", server_address=address)
    with pytest.raises(InvalidArgument, match=re.escape("…@gcr.io.example")) as caught:
        from_cri(auth, "gcr.io")
    assert "PA" not in str(caught.value)


@pytest.mark.parametrize("auth", [base64.b64encode(b"user:PASS\xff").decode(), "PASSé"])
async def test_a_password_in_another_encoding_is_not_logged(
    file: Path, caplog: pytest.LogCaptureFixture, auth: str
) -> None:
    write(file, {"auths": {"gcr.io": {"auth": auth}}})
    assert await NodeCredentials([file]).find("gcr.io") is None
    assert "cannot get credentials for gcr.io" in caplog.text
    assert "PASS" not in caplog.text


async def test_a_helper_s_answer_in_another_encoding_is_not_logged(
    file: Path, helper: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(file, {"credsStore": "test"})
    write_helper(helper, """printf '{"ServerURL":"","Username":"u","Secret":"PASS\\377"}'""")
    assert await NodeCredentials([file]).find("gcr.io") is None
    assert "UnicodeDecodeError" in caplog.text
    assert "PASS" not in caplog.text
