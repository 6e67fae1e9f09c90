"""TLS by files: what is wrong with each, and what happens when they are replaced."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trustme
from cryptography.hazmat.primitives import serialization

from dockershim.common import tls
from dockershim.common.tls import ServerTLS
from dockershim.errors import FailedPrecondition


class Files:
    """A server's certificate, its key, and the authority of its clients, in a folder."""

    def __init__(self, folder: Path) -> None:
        self.cert, self.key, self.ca = (folder / name for name in ("cert.pem", "key.pem", "ca.pem"))

    def issue(self, authority: trustme.CA) -> None:
        issued = authority.issue_cert("127.0.0.1")
        self.cert.write_bytes(b"".join(pem.bytes() for pem in issued.cert_chain_pems))
        self.key.write_bytes(issued.private_key_pem.bytes())

    def admit(self, authority: trustme.CA) -> None:
        self.ca.write_bytes(authority.cert_pem.bytes())

    def encrypt(self) -> None:
        key = serialization.load_pem_private_key(self.key.read_bytes(), None)
        how = serialization.BestAvailableEncryption(b"secret")
        form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8)
        self.key.write_bytes(key.private_bytes(*form, how))


@pytest.fixture
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def files(tmp_path: Path, authority: trustme.CA) -> Files:
    found = Files(tmp_path)
    found.issue(authority)
    found.admit(authority)
    return found


@asynccontextmanager
async def serving(context: ServerTLS) -> AsyncIterator[int]:
    """An echo."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(100):
                writer.write(data)
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=context)
    async with server:
        yield server.sockets[0].getsockname()[1]


@asynccontextmanager
async def connected(
    port: int, trusted: trustme.CA, shown_by: trustme.CA | None = None
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    context = ssl.create_default_context()
    trusted.configure_trust(context)
    if shown_by is not None:
        shown_by.issue_cert("client@example.org").configure_cert(context)
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    try:
        yield reader, writer
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def answers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    writer.write(b"hello")
    try:
        return await reader.read(100) == b"hello"
    except OSError:
        return False


async def lets_in(port: int, trusted: trustme.CA, shown_by: trustme.CA | None = None) -> bool:
    try:
        async with connected(port, trusted, shown_by) as connection:
            return await answers(*connection)
    except OSError:
        return False


async def test_a_new_certificate_is_shown_to_new_connections(files: Files, authority: trustme.CA) -> None:
    context = ServerTLS(files.cert, files.key, None)
    async with serving(context) as port, connected(port, authority) as old:
        assert await answers(*old)
        following = trustme.CA()
        files.issue(following)
        context.look()
        assert await lets_in(port, following)
        assert not await lets_in(port, authority)
        assert await answers(*old)


async def test_a_new_authority_lets_in_other_clients(files: Files, authority: trustme.CA) -> None:
    context = ServerTLS(files.cert, files.key, files.ca)
    async with serving(context) as port:
        following = trustme.CA()
        assert [await lets_in(port, authority, by) for by in (authority, following, None)] == [True, False, False]
        files.admit(following)
        context.look()
        assert [await lets_in(port, authority, by) for by in (authority, following, None)] == [False, True, False]


async def test_files_are_followed(files: Files, authority: trustme.CA, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tls, "LOOK_EVERY", 0.01)
    context = ServerTLS(files.cert, files.key, None)
    task = asyncio.create_task(context.follow())
    async with serving(context) as port:
        files.issue(following := trustme.CA())
        async with asyncio.timeout(5):
            while not await lets_in(port, following):
                pass
    task.cancel()
    await asyncio.wait([task])


def _other_key(files: Files) -> None:
    files.key.write_bytes(trustme.CA().issue_cert("127.0.0.1").private_key_pem.bytes())


BAD: list[tuple[str, Callable[[Files], object], str]] = [
    ("cert", lambda files: files.cert.unlink(), "No such file"),
    ("key", lambda files: files.key.unlink(), "No such file"),
    ("ca", lambda files: files.ca.unlink(), "No such file"),
    ("cert", lambda files: files.cert.write_text("none"), "must contain PEM certificates"),
    ("cert", lambda files: files.cert.write_text(""), "must contain PEM certificates"),
    ("key", lambda files: files.key.write_text("none"), "holds no key in PEM"),
    ("ca", lambda files: files.ca.write_text("none"), "must contain PEM certificates"),
    ("key", _other_key, "holds not the key"),
    ("key", Files.encrypt, "must not be encrypted"),
]


@pytest.mark.parametrize(("name", "spoil", "text"), BAD)
def test_what_is_wrong_names_the_file(files: Files, name: str, spoil: Callable[[Files], object], text: str) -> None:
    spoil(files)
    with pytest.raises(FailedPrecondition, match=text) as failure:
        ServerTLS(files.cert, files.key, files.ca)
    assert str(getattr(files, name)) in str(failure.value)


@pytest.mark.parametrize(("name", "spoil", "text"), BAD)
async def test_bad_files_change_nothing_and_are_told_of_once(
    files: Files,
    authority: trustme.CA,
    name: str,
    spoil: Callable[[Files], object],
    text: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    context = ServerTLS(files.cert, files.key, files.ca)
    async with serving(context) as port:
        spoil(files)
        for _ in range(3):
            context.look()
            assert await lets_in(port, authority, authority)
        assert [record.levelname for record in caplog.records] == ["ERROR"]
        assert text in caplog.text
        assert str(getattr(files, name)) in caplog.text
        files.issue(following := trustme.CA())
        files.admit(following)
        context.look()
        assert await lets_in(port, following, following)
        assert [record.levelname for record in caplog.records] == ["ERROR", "INFO"]
