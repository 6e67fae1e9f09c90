"""The versions of the specification, and the choice of one for a network."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from cni import _json

#: The versions that this package supports, oldest first.
SUPPORTED: Final = ("0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0")
NEWEST: Final = SUPPORTED[-1]
OLDEST: Final = SUPPORTED[0]


def at_least(version: str, minimum: str) -> bool:
    """Whether a supported ``version`` is ``minimum`` or newer."""
    return SUPPORTED.index(version) >= SUPPORTED.index(minimum)


def select(config: Mapping[str, Any]) -> str:
    """The newest version that both a configuration and this package support (SPEC.md, "Version considerations").

    A configuration without a version has 0.1.0, which had no such field. Raises ``_json.Malformed``.
    """
    offered = list(_json.texts(config, "cniVersions"))
    single = _json.text(config, "cniVersion")
    if single or not offered:
        offered.append(single or OLDEST)
    for version in offered:
        _check_form(version)
    spoken = [version for version in SUPPORTED if version in offered]
    if not spoken:
        raise _json.Malformed(f"version {', '.join(offered)} is not supported; these are: {', '.join(SUPPORTED)}")
    return spoken[-1]


def _check_form(version: str) -> None:
    parts = version.split(".")
    if len(parts) > 3 or not all(part.isascii() and part.isdigit() for part in parts):
        raise _json.Malformed(f"{version!r:.80} is not a valid version")
