"""cri-dockerd's command line: what the program takes and answers when it is called by the name ``cri-dockerd``.

``FLAGS`` is the table of cri-dockerd's flags, and of what becomes of each one here. ``command`` reads arguments by the
rules of pflag, which cri-dockerd uses, and makes flags of dockershim of them. All of it is pure: nothing else in
dockershim knows by which name it was called.
"""

from __future__ import annotations

import json
import platform
import re
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import PurePath
from typing import Final

from dockershim import __version__
from dockershim.server.config import flag_name

NAME: Final = "cri-dockerd"
#: The release whose command line this is.
VERSION: Final = "0.4.4"
ENDPOINT: Final = f"unix:///var/run/{NAME}.sock"
ROOT: Final = f"/var/lib/{NAME}"
#: Defaults of options that differ from dockershim's: the socket where tools look for it, and the checkpoints of the
#: cri-dockerd that served this node before.
DEFAULTS: Final[Mapping[str, str]] = {"container_runtime_endpoint": ENDPOINT, "adopt_from": ROOT}

_FULL_VERSION: Final = f"{VERSION} (dockershim-{__version__})"


class Refused(Exception):
    """Arguments that cri-dockerd refuses, with its message. ``usage``: it prints its flags before the message."""

    def __init__(self, message: str, *, usage: bool = True) -> None:
        super().__init__(message)
        self.usage = usage


class Effect(Enum):
    """What becomes of a flag."""

    SAME = "the same"
    TRANSLATED = "translated"
    NONE = "accepted, without effect"
    ANSWER = "answered"


# -- Readers of values, by Go's rules. They return the value as an option of dockershim reads it, or raise ValueError.


def _bool(text: str) -> str:
    if text in ("1", "t", "T", "true", "TRUE", "True"):
        return "true"
    if text in ("0", "f", "F", "false", "FALSE", "False"):
        return "false"
    raise ValueError(f"strconv.ParseBool: parsing {_quoted(text)}: invalid syntax")


_DURATION_UNITS: Final = ("ns", "us", "µs", "μs", "ms", "s", "m", "h")
_DURATION_PART: Final = re.compile(r"(?:\d+\.?\d*|\.\d+)([^\d.]*)", re.ASCII)


def _duration(text: str) -> str:
    unsigned = text[1:] if text.startswith(("+", "-")) else text
    if unsigned == "0":
        return unsigned
    left = unsigned
    while (part := _DURATION_PART.match(left)) is not None:
        if not part[1]:
            raise ValueError(f"time: missing unit in duration {_quoted(text)}")
        if part[1] not in _DURATION_UNITS:
            raise ValueError(f"time: unknown unit {_quoted(part[1])} in duration {_quoted(text)}")
        left = left[part.end() :]
    if left or not unsigned:
        raise ValueError(f"time: invalid duration {_quoted(text)}")
    return text.removeprefix("+")


_OCTAL: Final = re.compile(r"^([+-]?)0(?=[0-7_])")


def _int32(text: str) -> str:
    try:
        if not text.isascii() or text != text.strip():
            raise ValueError
        number = int(_OCTAL.sub(r"\g<1>0o", text), 0)
    except ValueError:
        raise ValueError(f"strconv.ParseInt: parsing {_quoted(text)}: invalid syntax") from None
    if not -(2**31) <= number < 2**31:
        raise ValueError(f"strconv.ParseInt: parsing {_quoted(text)}: value out of range")
    return str(number)


_HAIRPIN_MODES: Final = ("promiscuous-bridge", "hairpin-veth", "none")


def _hairpin_mode(text: str) -> str:
    if text not in _HAIRPIN_MODES:
        allowed = " ".join(map(_quoted, _HAIRPIN_MODES))
        raise ValueError(f"{_quoted(text)} is not a valid hairpin-mode value, must be one of: [{allowed}]")
    return text


def _quoted(text: str) -> str:
    """Go's ``%q``."""
    return json.dumps(text, ensure_ascii=False)


# -- The table.


@dataclass(frozen=True, slots=True)
class Kind:
    """A type of values: pflag's name of it, and its reader. A bare flag of a ``switch`` means true."""

    name: str
    read: Callable[[str], str]
    switch: bool = False
    #: The default that pflag does not print.
    zero: str = ""


_BOOL: Final = Kind("bool", _bool, switch=True, zero="false")
_STRING: Final = Kind("string", str)
_DURATION: Final = Kind("duration", _duration, zero="0s")
_INT32: Final = Kind("int32", _int32, zero="0")
_HAIRPIN: Final = Kind("HairpinMode", _hairpin_mode)


@dataclass(frozen=True, slots=True)
class Flag:
    """A flag of cri-dockerd. ``default`` is cri-dockerd's, where it is also ours; ``here`` says what becomes of it."""

    name: str
    kind: Kind
    default: str
    help: str
    effect: Effect = Effect.SAME
    here: str = ""
    #: The option that it sets, where that has another meaning than the one of this name.
    sets: str = ""
    shorthand: str = ""

    @property
    def option(self) -> str:
        """The key of the option that it sets."""
        return self.sets or self.name.replace("-", "_")


#: In the order of their names, as ``--help`` prints them.
FLAGS: Final[tuple[Flag, ...]] = (
    Flag("buildinfo", _BOOL, "false", "Print how this program was built", Effect.ANSWER),
    Flag("cni-bin-dir", _STRING, "/opt/cni/bin", "Directories of CNI plugins, separated by commas"),
    Flag("cni-cache-dir", _STRING, "/var/lib/cni/cache", "Directory of the cached results of CNI plugins"),
    Flag("cni-conf-dir", _STRING, "/etc/cni/net.d", "Directory of CNI network configurations"),
    Flag(
        "container-runtime-endpoint",
        _STRING,
        ENDPOINT,
        "Endpoint of the CRI: unix:///path, or fd:// for a socket passed by systemd",
        here="a path on which systemd listens for the unit is taken from systemd",
    ),
    Flag(
        "cri-dockerd-root-directory",
        _STRING,
        ROOT,
        "Directory with the checkpoints of cri-dockerd, which are adopted",
        Effect.TRANSLATED,
        here="`--adopt-from`; new checkpoints are in `--root-directory`",
        sets="adopt_from",
    ),
    Flag("docker-endpoint", _STRING, "unix:///var/run/docker.sock", "Endpoint of the Docker Engine"),
    Flag(
        "hairpin-mode",
        _HAIRPIN,
        "none",
        "How kubenet lets a pod reach itself through a Service",
        here="for kubenet, as there",
    ),
    Flag("help", _BOOL, "false", "Print the flags", Effect.ANSWER, shorthand="h"),
    Flag("image-pull-progress-deadline", _DURATION, "1m0s", "Cancel a pull that makes no progress for this long"),
    Flag(
        "ipv6-dual-stack",
        _BOOL,
        "false",
        "Accepted without effect: one address of each IP family is always reported",
        Effect.NONE,
        here="both families are always reported",
    ),
    Flag("log-level", _STRING, "info", "Minimum severity of log messages", here="`trace` is `debug`"),
    Flag("network-plugin", _STRING, "cni", "Network of pods: cni, kubenet, or no-op for the engine's bridge"),
    Flag("network-plugin-mtu", _INT32, "0", "MTU of the network that kubenet creates", here="for kubenet, as there"),
    Flag("pod-cidr", _STRING, "", "CIDR of pod addresses for kubenet, or two separated by a comma"),
    Flag(
        "pod-infra-container-image",
        _STRING,
        "",
        "Image of the container that holds a pod's namespaces; without it, the built-in one",
        here="the default is the built-in image",
    ),
    Flag(
        "runtime-cgroups",
        _STRING,
        "",
        "Accepted without effect: the service manager chooses the cgroup",
        Effect.NONE,
        here="the service manager chooses the cgroup",
    ),
    Flag(
        "runtime-request-timeout",
        _DURATION,
        "0s",
        "Timeout of one call to the engine; 0 is two minutes",
        here="0 is two minutes",
    ),
    Flag(
        "streaming-bind-addr",
        _STRING,
        "",
        "Address of the exec, attach and port-forward server; without it, 127.0.0.1",
        here="the default is `127.0.0.1:0`, not every interface",
    ),
    Flag("version", _BOOL, "false", "Print the version", Effect.ANSWER),
)
_BY_NAME: Final = {flag.name: flag for flag in FLAGS}
_BY_SHORTHAND: Final = {flag.shorthand: flag for flag in FLAGS if flag.shorthand}
_LEVELS: Final = ("panic", "fatal", "error", "warn", "warning", "info", "debug", "trace")


def is_name(program: str) -> bool:
    """Whether ``program``, a path or the name by which a program was called, asks for cri-dockerd's command line."""
    return PurePath(program).name == NAME


def command(arguments: Sequence[str]) -> str | Mapping[str, str]:
    """What cri-dockerd would do: a text to print, or the flags of dockershim by which to serve. Raises Refused."""
    values, rest = _parsed(arguments)
    if rest:
        raise Refused(f"Unknown command: {rest[0]}")
    if values.get("help") == "true":
        return f"dockershim, called by the name {NAME}: a CRI server for Docker Engine\n\n{usage()}"
    if values.get("version") == "true":
        return f"{NAME} {_FULL_VERSION}\n"
    if values.get("buildinfo") == "true":
        commit, python = f"dockershim-{__version__}", f"none, python {platform.python_version()}"
        return f"Program: {NAME}\nVersion: {_FULL_VERSION}\nGitCommit: {commit}\nGo version: {python}\n"
    # The empty one is its default.
    if not values.get("log-level", "info"):
        del values["log-level"]
    elif (level := values.get("log-level", "info")).lower() not in _LEVELS:
        raise Refused(f"Unknown log level: {level}", usage=False)
    flags = ((_BY_NAME[name], value) for name, value in values.items())
    return {flag.option: value for flag, value in flags if flag.effect is not Effect.ANSWER}


def usage() -> str:
    """The flags in pflag's form."""
    heads = [_head(flag) for flag in FLAGS]
    width = max(map(len, heads))
    lines = (f"{head:{width}}   {flag.help}{_default(flag)}\n" for head, flag in zip(heads, FLAGS, strict=True))
    return f"Usage:\n  {NAME} [flags]\n\nFlags:\n{''.join(lines)}"


def _head(flag: Flag) -> str:
    shorthand = f"-{flag.shorthand}," if flag.shorthand else ""
    return f"  {shorthand:3} {flag_name(flag.name)}{'' if flag.kind.switch else f' {flag.kind.name}'}"


def _default(flag: Flag) -> str:
    if flag.default == flag.kind.zero:
        return ""
    return f" (default {_quoted(flag.default) if flag.kind is _STRING else flag.default})"


def fatal(message: str, time: str) -> str:
    """The line of cri-dockerd's log before it ends with 1; ``time`` in RFC 3339."""
    return f'time="{time}" level=fatal msg={_quoted(message)}\n'


# -- pflag's rules.


def _parsed(arguments: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """The value of each flag, the last one of several, and what is not a flag. Raises Refused."""
    words, rest = deque(arguments), list[str]()
    values: dict[str, str] = {}
    while words:
        word = words.popleft()
        if word == "--":
            rest += words
            break
        if word.startswith("--"):
            values.update((_long(word, words),))
        elif len(word) > 1 and word.startswith("-"):
            values.update(_short(word[1:]))
        else:
            rest.append(word)
    return values, rest


def _long(word: str, words: deque[str]) -> tuple[str, str]:
    """The flag and the value of ``--flag=value``, ``--flag value`` or a bare switch."""
    name, equals, value = word[2:].partition("=")
    if not name or name.startswith("-"):
        raise Refused(f"bad flag syntax: {word}")
    flag = _BY_NAME.get(name)
    if flag is None:
        raise Refused(f"unknown flag: --{name}")
    if not equals:
        if flag.kind.switch:
            value = "true"
        elif words:
            value = words.popleft()
        else:
            raise Refused(f"flag needs an argument: {word}")
    return name, _value(flag, value)


def _short(letters: str) -> dict[str, str]:
    """The values of ``-h``, several such letters in one word, or ``-h=value``: all shorthands are of switches."""
    values = {}
    while letters:
        # pflag leaves these to Go's tests.
        if letters.startswith("test."):
            break
        flag = _BY_SHORTHAND.get(letters[0])
        if flag is None:
            raise Refused(f"unknown shorthand flag: '{letters[0]}' in -{letters}")
        if len(letters) > 2 and letters[1] == "=":
            values[flag.name] = _value(flag, letters[2:])
            break
        values[flag.name] = "true"
        letters = letters[1:]
    return values


def _value(flag: Flag, text: str) -> str:
    try:
        return flag.kind.read(text)
    except ValueError as error:
        name = f"-{flag.shorthand}, --{flag.name}" if flag.shorthand else f"--{flag.name}"
        raise Refused(f"invalid argument {_quoted(text)} for {_quoted(name)} flag: {error}") from None
