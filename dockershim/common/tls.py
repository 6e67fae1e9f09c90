"""TLS with PEM files that may be replaced at any time. Errors name the file."""

from __future__ import annotations

import asyncio
import logging
import ssl
from pathlib import Path
from typing import Any, Final

from dockershim.errors import FailedPrecondition

logger = logging.getLogger(__name__)

#: Seconds between two checks for replaced files.
LOOK_EVERY: Final = 5.0


class ServerTLS(ssl.SSLContext):
    """The TLS context of a server. New connections use the files as they were at the last check. With a ``client_ca``,
    clients must show a certificate. Raises FailedPrecondition."""

    def __new__(cls, cert: Path, key: Path, client_ca: Path | None) -> ServerTLS:
        return super().__new__(cls, ssl.PROTOCOL_TLS_SERVER)

    def __init__(self, cert: Path, key: Path, client_ca: Path | None) -> None:
        self._cert = cert
        self._key = key
        self._client_ca = client_ca
        self._logged = ""
        self._seen = self._versions()
        self._context = self._load()

    def wrap_bio(self, *args: Any, **options: Any) -> ssl.SSLObject:
        """Make the TLS object of a new connection."""
        return self._context.wrap_bio(*args, **options)

    async def follow(self) -> None:
        """Load new files whenever they change, until cancelled."""
        while True:
            await asyncio.sleep(LOOK_EVERY)
            await asyncio.to_thread(self.look)

    def look(self) -> None:
        """Load the files if they changed. If they do not match or are incomplete, log that once and try again later."""
        if (versions := self._versions()) == self._seen:
            return
        try:
            self._context = self._load()
        except FailedPrecondition as error:
            if str(error) != self._logged:
                self._logged = str(error)
                logger.error("%s; new connections use the previous certificate", error)
        else:
            self._seen, self._logged = versions, ""
            logger.info("TLS: loaded the certificate in %s, new connections use it", self._cert)

    def _versions(self) -> list[tuple[int, ...]]:
        return [_version(file) for file in (self._cert, self._key, self._client_ca) if file is not None]

    def _load(self) -> ssl.SSLContext:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        load_pair(context, self._cert, self._key)
        if self._client_ca is not None:
            load_authorities(context, self._client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
        return context


def load_authorities(context: ssl.SSLContext, ca: Path) -> None:
    """Check the certificate of the other side with those in a file. Raises FailedPrecondition."""
    try:
        context.load_verify_locations(ca)
    except ssl.SSLError as error:
        raise FailedPrecondition(f"TLS: {ca} must contain PEM certificates: {error}") from error
    except OSError as error:
        raise FailedPrecondition(f"TLS: cannot read {ca}: {error.strerror}") from error


def check_certificates(file: Path) -> None:
    """Raises FailedPrecondition if the file has no certificates."""
    load_authorities(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), file)


def load_pair(context: ssl.SSLContext, cert: Path, key: Path) -> None:
    """Use the certificate and the key of these files. Raises FailedPrecondition."""
    check_certificates(cert)
    try:
        key.open("rb").close()
        context.load_cert_chain(cert, key, password=lambda: _refuse(key))
    except ssl.SSLError as error:
        what = "not the key of" if error.reason == "KEY_VALUES_MISMATCH" else "no key in PEM for"
        raise FailedPrecondition(f"TLS: {key} holds {what} the certificate in {cert}: {error}") from error
    except OSError as error:
        raise FailedPrecondition(f"TLS: cannot read {key}: {error.strerror}") from error


def _refuse(key: Path) -> str:
    raise FailedPrecondition(f"TLS: the key in {key} must not be encrypted")


def _version(file: Path) -> tuple[int, ...]:
    """Numbers that change when the file is written or replaced; empty if it does not exist."""
    try:
        found = file.stat()
    except OSError:
        return ()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
