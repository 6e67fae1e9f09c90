"""Where files of a node name the socket of a CRI server, and how that one value is replaced. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

#: How a flag of the kubelet, a key of its configuration, or one of crictl's begins, up to the value.
_FLAG: Final = r"--(?:container-runtime|image-service)-endpoint(?:=|[\s\\]+)"
_KEY: Final = r"(?:containerRuntimeEndpoint|imageServiceEndpoint|runtime-endpoint|image-endpoint)[\"']?[ \t]*:[ \t]*"
_COMMENTS: Final = ("#", ";")


def socket_path(endpoint: str) -> str:
    """The path of an endpoint, /run for /var/run, which is the same folder; empty if it is not a unix socket."""
    path = endpoint.removeprefix("unix://")
    if not path.startswith("/"):
        return ""
    return path.removeprefix("/var") if path.startswith("/var/run/") else path


def replace_endpoint(text: str, path: str, endpoint: str) -> tuple[str, str]:
    """``text`` with ``endpoint`` in each setting that is the socket ``path``, which is one of ``socket_path``.

    All other characters stay, and so do comments. Returns the value too that was there, the first one of several
    spellings; empty if there was none.
    """
    run = r"(?:/var)?" if path.startswith("/run/") else ""
    value = rf"(?:unix://)?{run}{re.escape(path)}"
    found: list[str] = []

    def replaced(match: re.Match[str]) -> str:
        if text[text.rfind("\n", 0, match.start()) + 1 :].lstrip().startswith(_COMMENTS):
            return match[0]
        found.append(match["value"])
        return f"{match['before']}{endpoint}"

    pattern = rf"(?P<before>(?:{_FLAG}|{_KEY})[\"']?)(?P<value>{value})(?=[\"'\s,}}\\]|\Z)"
    return re.sub(pattern, replaced, text), found[0] if found else ""


def flag(words: Sequence[str], name: str) -> str:
    """The value of a flag with two dashes in a command line, the last one of several; empty without it."""
    value = ""
    for word, following in zip(words, [*words, ""][1:], strict=True):
        if word == f"--{name}":
            value = following
        elif word.startswith(f"--{name}="):
            value = word.partition("=")[2]
    return value
