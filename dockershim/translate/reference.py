"""Image references: ``[domain/]path[:tag][@digest]``, by the grammar of github.com/distribution/reference."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Final

from dockershim.errors import InvalidArgument

DEFAULT_DOMAIN: Final = "docker.io"
DEFAULT_TAG: Final = "latest"

_OFFICIAL: Final = "library/"
_LEGACY_DEFAULT_DOMAIN: Final = "index.docker.io"
_LONGEST_NAME: Final = 255

_LABEL: Final = r"[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?"
_DOMAIN: Final = re.compile(rf"(?:{_LABEL}(?:\.{_LABEL})*|\[[a-fA-F0-9:]+\])(?::[0-9]+)?")
_COMPONENT: Final = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_PATH: Final = re.compile(rf"{_COMPONENT}(?:/{_COMPONENT})*")
_TAG: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_DIGEST: Final = re.compile(r"sha256:[a-f0-9]{64}|sha384:[a-f0-9]{96}|sha512:[a-f0-9]{128}")
_ID: Final = re.compile(r"sha256:[a-f0-9]{1,64}|[a-f0-9]{1,64}")
_WHOLE_ID: Final = re.compile(r"[a-f0-9]{64}")
#: What ends in something like a digest, right or wrong, and is not the address of a registry before it.
_WITH_DIGEST: Final = re.compile(r"(?![^@]*//)([^@]*)@(sha[0-9]+:[^/@]*)", re.DOTALL)
_QUOTED: Final = 300


@dataclass(frozen=True, slots=True)
class Reference:
    """A parsed reference. ``domain`` and ``path`` are never empty ("docker.io", "library/nginx"); ``tag`` and
    ``digest`` ("sha256:…") are empty if the text had none."""

    domain: str
    path: str
    tag: str = ""
    digest: str = ""

    @property
    def name(self) -> str:
        return f"{self.domain}/{self.path}"

    @property
    def normalized(self) -> str:
        """The whole reference, with ``:latest`` if it has neither a tag nor a digest."""
        return self.name + self._suffix()

    @property
    def familiar(self) -> str:
        """``normalized`` as the engine shows it in RepoTags: without the parts that are optional for Docker Hub."""
        if self.domain != DEFAULT_DOMAIN:
            return self.normalized
        path = self.path.removeprefix(_OFFICIAL)
        return (self.path if "/" in path else path) + self._suffix()

    @property
    def shown(self) -> str:
        """The entry in the engine's RepoTags or RepoDigests that this matches. If it has a digest, only that counts."""
        return replace(self, tag="").familiar if self.digest else self.familiar

    @property
    def version(self) -> str:
        """What selects the image: the digest (a tag beside it is ignored), or else the tag."""
        return self.digest or self.tag or DEFAULT_TAG

    @property
    def lookup(self) -> str:
        """The name for requests to the engine."""
        return f"{self.name}{'@' if self.digest else ':'}{self.version}"

    def _suffix(self) -> str:
        tag = self.tag or ("" if self.digest else DEFAULT_TAG)
        return (f":{tag}" if tag else "") + (f"@{self.digest}" if self.digest else "")


def parse_reference(text: str) -> Reference:
    """Parse a reference. Raises InvalidArgument, whose message names the part that is wrong."""
    rest, at, digest = text.partition("@")
    if at and not _DIGEST.fullmatch(digest):
        raise _invalid(text, "the digest is not sha256, sha384 or sha512 in lower-case hexadecimal")
    rest, tag = _split_tag(text, rest)
    domain, path = _split_domain(rest)
    if not _DOMAIN.fullmatch(domain):
        raise _invalid(text, "the registry is not a host name or address, with or without a port")
    if path != path.lower():
        raise _invalid(text, "the repository must be in lower case")
    if not _PATH.fullmatch(path):
        raise _invalid(text, "the repository has characters that are not allowed, or is empty")
    if _WHOLE_ID.fullmatch(text):
        raise _invalid(text, "64 hexadecimal digits are an image id, not a name")
    if len(domain) + 1 + len(path) > _LONGEST_NAME:
        raise _invalid(text, f"the name is longer than {_LONGEST_NAME} characters")
    return Reference(domain, path, tag, digest)


def quoted(text: str) -> str:
    """An image name or a registry's address that may be wrong, for a message; long ones are cut.

    Without what stands before an ``@``: in ``https://user:password@host/image`` it is a password. A digest stays.
    """
    if _WITH_DIGEST.fullmatch(text) is None:
        _, at, rest = text.rpartition("@")
        text = f"…@{rest}" if at else text
    return repr(text[:_QUOTED])


def may_be_id(text: str) -> bool:
    """Whether the engine may take the text for an image id or the start of one. It may be a name too: "cafe"."""
    return _ID.fullmatch(text) is not None


def lookup_name(text: str) -> str:
    """The name for requests to the engine, from any reference or a whole or short id. Raises InvalidArgument."""
    return text if may_be_id(text) else parse_reference(text).lookup


def _split_tag(text: str, rest: str) -> tuple[str, str]:
    """A colon after the last slash begins the tag; one before it is a port or within an IPv6 address."""
    colon = rest.rfind(":")
    if colon <= rest.rfind("/"):
        return rest, ""
    tag = rest[colon + 1 :]
    if not _TAG.fullmatch(tag):
        raise _invalid(text, "the tag is empty, too long, or has characters that are not allowed")
    return rest[:colon], tag


def _split_domain(rest: str) -> tuple[str, str]:
    """The first part is a registry if it cannot be a user of Docker Hub: it has a dot, a port, a bracket or an
    upper-case letter, or is ``localhost``."""
    first, slash, path = rest.partition("/")
    if not slash or not (first == "localhost" or first != first.lower() or any(mark in first for mark in ".:[")):
        first, path = DEFAULT_DOMAIN, rest
    if first == _LEGACY_DEFAULT_DOMAIN:
        first = DEFAULT_DOMAIN
    if first == DEFAULT_DOMAIN and "/" not in path:
        path = _OFFICIAL + path
    return first, path


def _invalid(text: str, why: str) -> InvalidArgument:
    return InvalidArgument(f"invalid image reference {quoted(text)}: {why}")
