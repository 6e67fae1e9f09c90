"""Which groups a container's process gets, where the engine has another rule than the CRI.

The engine adds the groups that the image's /etc/group gives a user, but not if a group is asked for beside the user,
by ``run_as_group`` or by the image's own USER. The CRI's policy Merge always adds them, and Strict never does.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from dockershim.api.cri.v1 import api_pb2 as cri

_ROOT = "0"
_ID = re.compile(r"[0-9]{1,10}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Account:
    """What an image says of ``user``: its first group, None if the image does not know it, and its other groups."""

    user: str
    gid: int | None
    groups: tuple[int, ...]


def has_user(context: cri.LinuxContainerSecurityContext) -> bool:
    """Whether a user is asked for; if not, it is the image's."""
    return context.HasField("run_as_user") or bool(context.run_as_username)


def unsettled_user(context: cri.LinuxContainerSecurityContext, image_user: str) -> str:
    """The user, by name or number, of whom the image's files have to be read; empty where the engine's rule is right.

    ``image_user`` is the image's USER, as in "1000", "app:staff".
    """
    if has_user(context):
        user = context.run_as_username or str(context.run_as_user.value)
        has_group = context.HasField("run_as_group")
    else:
        user, _, group = image_user.partition(":")
        has_group = bool(group)
    strict = context.supplemental_groups_policy == cri.Strict
    return (user or _ROOT) if has_group != strict else ""


def find_account(user: str, passwd: str, group: str) -> Account:
    """A user's account in the content of an image's /etc/passwd and /etc/group, passwd(5) and group(5).

    As in the engine the first line of a user counts, and a number is never a name. Lines of another shape are skipped.
    """
    number = user.lstrip("0") if is_number(user) else None
    for name, uid, gid in _lines(passwd, 2, 3):
        if (uid.lstrip("0") == number) if number is not None else (name == user):
            groups = (int(group_id) for _, group_id, members in _lines(group, 2) if name in members.split(","))
            return Account(user, int(gid), tuple(dict.fromkeys(groups)))
    return Account(user, None, ())


def is_number(user: str) -> bool:
    """Whether the engine takes a user for a number, and not for a name."""
    return user.isascii() and user.isdigit()


def _lines(text: str, *numbers: int) -> Iterator[tuple[str, str, str]]:
    """The first, third and fourth part of each line that has them, and an id in each of ``numbers``."""
    for line in text.split("\n"):
        parts = line.strip().split(":")
        if len(parts) > 3 and all(_ID.fullmatch(parts[number]) for number in numbers):
            yield parts[0], parts[2], parts[3]
