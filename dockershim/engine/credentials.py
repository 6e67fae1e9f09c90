"""Credentials for registries: those of a PullImage request, or else those in the node's docker configuration.

The ``docker`` package reads the configuration files. It takes 11 MB of memory, so it is imported only if there is a
file. Its code for credential helpers has no time limit, so this module runs them itself
(github.com/docker/docker-credential-helpers: the registry on stdin, JSON on stdout).
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from dockershim.api.cri.v1 import api_pb2
from dockershim.errors import InvalidArgument
from dockershim.translate.reference import DEFAULT_DOMAIN, quoted

logger = logging.getLogger(__name__)

_KUBELET_FILE: Final = Path("/var/lib/kubelet/config.json")
# Docker Hub's name in configuration files and credential stores.
_HUB: Final = "https://index.docker.io/v1/"
_HUB_DOMAINS: Final = ("index.docker.io", "registry-1.docker.io")
# Raised for a file or helper that cannot be read or run, and for JSON of the wrong shape.
_UNUSABLE: Final = (OSError, ValueError, KeyError, TypeError, AttributeError)
_TOKEN_USER: Final = "<token>"


@dataclass(frozen=True, slots=True)
class Credentials:
    """A password, an identity token or a registry token. Of several the engine prefers the last one."""

    username: str = ""
    password: str = field(default="", repr=False)
    identity_token: str = field(default="", repr=False)
    registry_token: str = field(default="", repr=False)
    server_address: str = field(default="", repr=False)

    def header(self) -> str:
        """The value of X-Registry-Auth: base64url of JSON (Docker Engine API, "Authentication")."""
        fields = {
            "username": self.username,
            "password": self.password,
            "identitytoken": self.identity_token,
            "registrytoken": self.registry_token,
            "serveraddress": self.server_address,
        }
        filled = {name: value for name, value in fields.items() if value}
        return base64.urlsafe_b64encode(json.dumps(filled).encode("ascii")).decode("ascii")


def from_cri(auth: api_pb2.AuthConfig, registry: str) -> Credentials | None:
    """The credentials of a PullImage request, None if it has none.

    ``auth.auth``, base64 of "user:password", is used if the username is empty. ``registry`` is the domain of the image
    reference. Raises InvalidArgument if ``auth.auth`` is something else, if there is only a password, or if the
    credentials are for another registry: the engine does not look at ``server_address``.
    """
    username, password = auth.username, auth.password
    if not username and auth.auth:
        username, password = _decode_basic(auth.auth)
    if not (username or auth.identity_token or auth.registry_token):
        if password:
            raise InvalidArgument("auth.password: requires auth.username")
        return None
    if auth.server_address and _domain(auth.server_address) != registry:
        raise InvalidArgument(
            f"auth.server_address: {quoted(auth.server_address)}: must be the image's registry, {registry!r}"
        )
    return Credentials(username, password, auth.identity_token, auth.registry_token, auth.server_address)


def _domain(address: str) -> str:
    """The registry of an address as in configuration files: ``https://registry.example:5000/v2/``, or without both."""
    domain = address.partition("://")[2] or address
    domain = domain.partition("/")[0]
    return DEFAULT_DOMAIN if domain in _HUB_DOMAINS else domain


def _decode_basic(text: str) -> tuple[str, str]:
    try:
        decoded = base64.b64decode(text, validate=True).decode()
    except (binascii.Error, ValueError) as error:
        raise InvalidArgument("auth.auth: must be base64-encoded text") from error
    username, colon, password = decoded.partition(":")
    if not (username and colon):
        raise InvalidArgument("auth.auth: must be user:password, base64-encoded")
    # Old docker clients padded the password.
    return username, password.rstrip("\0")


def default_files(environment: Mapping[str, str]) -> tuple[Path, ...]:
    """The files in which docker clients and kubelets keep a node's credentials, in the order of the lookup.

    The folder DOCKER_CONFIG replaces ~/.docker.
    """
    folder = environment.get("DOCKER_CONFIG") or Path(environment.get("HOME") or "/", ".docker")
    return (Path(folder, "config.json"), _KUBELET_FILE)


class NodeCredentials:
    """The credentials in docker configuration files, plain or by credential stores and helpers.

    The files are read each time, as they change while the node runs. A problem with one is logged, and the next one is
    tried: a registry may need no credentials. ``helper_timeout`` is in seconds.
    """

    def __init__(self, files: Sequence[Path], helper_timeout: float = 10.0) -> None:
        self._files = tuple(files)
        self._helper_timeout = helper_timeout

    async def find(self, registry: str) -> Credentials | None:
        """The credentials for the domain of an image reference: "docker.io", "registry.example:5000"."""
        for path in self._files:
            if await asyncio.to_thread(path.is_file):
                try:
                    found = await self._find_in(path, registry)
                except _UNUSABLE as error:
                    # Not its repr: that of an error in a text's encoding has the text, and so the password.
                    kind = type(error).__name__
                    logger.warning("cannot get credentials for %s from %s: %s: %s", registry, path, kind, error)
                    continue
                if found is not None:
                    return found
        return None

    async def _find_in(self, path: Path, registry: str) -> Credentials | None:
        helper, plain = await asyncio.to_thread(_read, path, registry)
        if helper:
            found = await self._ask_helper(helper, _HUB if registry == DEFAULT_DOMAIN else registry)
            if found is not None:
                return found
        return _from_file(plain)

    async def _ask_helper(self, name: str, server: str) -> Credentials | None:
        program = f"docker-credential-{name}"
        try:
            process = await asyncio.create_subprocess_exec(
                program,
                "get",
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
            )
        except FileNotFoundError as error:
            raise ValueError(f"{program} is not in PATH") from error
        except PermissionError as error:
            raise ValueError(f"{program} is not executable") from error
        try:
            async with asyncio.timeout(self._helper_timeout):
                output, _ = await process.communicate(server.encode())
        except TimeoutError as error:
            raise TimeoutError(f"{program} timed out after {self._helper_timeout:g} s") from error
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        # A helper also exits with an error if it has no credentials; its message differs between helpers.
        return _from_helper(json.loads(output)) if process.returncode == 0 else None


def _read(path: Path, registry: str) -> tuple[str | None, Mapping[str, Any]]:
    """The helper for the registry, if any, and the registry's entry in the file itself. Blocks."""
    from docker.auth import AuthConfig, load_config
    from docker.errors import DockerException

    try:
        config = load_config(config_path=os.fspath(path))
        helper = config.get_credential_store(registry)
        # Without the credential stores, so that this runs no helper.
        return helper, AuthConfig({"auths": config.auths}).resolve_authconfig(registry) or {}
    except DockerException as error:
        raise ValueError(error) from error


def _from_file(entry: Mapping[str, Any]) -> Credentials | None:
    username, token = entry.get("username") or "", entry.get("IdentityToken") or ""
    if not (username or token):
        return None
    return Credentials(username, entry.get("password") or "", token, server_address=entry.get("serveraddress") or "")


def _from_helper(answer: Mapping[str, str]) -> Credentials | None:
    username, secret = answer["Username"], answer["Secret"]
    server = answer.get("ServerURL", "")
    if not (username or secret):
        return None
    if username == _TOKEN_USER:
        return Credentials(identity_token=secret, server_address=server)
    return Credentials(username, secret, server_address=server)
