"""Which user and groups a container's process gets, and what to ask of the engine where its rule is not the CRI's.

The engine adds the groups that the image's /etc/group gives a user, but not if a group is asked for beside the user,
by ``run_as_group`` or by the image's own USER. The CRI's policy Merge always adds them, and Strict never does.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from dockershim.api.cri.v1 import api_pb2 as cri

_ROOT = "0"
#: The engine takes no higher ones.
_HIGHEST_ID = 2**31 - 1
_ID = re.compile(r"[0-9]{1,10}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Account:
    """What an image says of ``user``, as in "1000", "app" or "app:staff".

    ``uid`` is None if the engine refuses to start it: the image does not know the name of the user or of the group.
    ``gid`` is the group that is asked for beside the user, or the user's first one; None if the image tells none.
    ``groups`` are its other groups; none if a group is asked for.
    """

    user: str
    uid: int | None
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
    user_part, _, group_part = user.partition(":")
    user_part = user_part or _ROOT
    name, uid, gid = _find(user_part, _lines(passwd, 2, 3)) or ("", user_part, "")
    if group_part:
        _, gid, _ = _find(group_part, _lines(group, 2)) or ("", group_part, "")
    groups: Iterable[str] = ()
    if name and not group_part:
        groups = (group_id for _, group_id, members in _lines(group, 2) if name in members.split(","))
    is_known = _is_id(uid) and (_is_id(gid) or not group_part)
    return Account(
        user,
        int(uid) if is_known else None,
        int(gid) if _is_id(gid) else None,
        tuple(dict.fromkeys(map(int, groups))),
    )


def to_cri_user(account: Account | None, group_add: Iterable[str]) -> cri.ContainerUser | None:
    """ContainerUser: whom the engine starts the first process as. ``group_add`` is the container's GroupAdd.

    None if the account of the container's user is not known, or the engine does not start such a container.
    """
    added = list(group_add)
    if account is None or account.uid is None or not all(_ID.fullmatch(group) for group in added):
        return None
    gid = account.gid or 0
    groups = dict.fromkeys((gid, *account.groups, *map(int, added)))
    return cri.ContainerUser(linux=cri.LinuxContainerUser(uid=account.uid, gid=gid, supplemental_groups=groups))


def is_number(text: str) -> bool:
    """Whether the engine takes a user or a group for a number, and not for a name."""
    return _ID.fullmatch(text) is not None


def _is_id(text: str) -> bool:
    return is_number(text) and int(text) <= _HIGHEST_ID


def _find(wanted: str, lines: Iterable[tuple[str, str, str]]) -> tuple[str, str, str] | None:
    number = int(wanted) if is_number(wanted) else None
    return next((line for line in lines if (int(line[1]) == number if number is not None else line[0] == wanted)), None)


def _lines(text: str, *numbers: int) -> Iterator[tuple[str, str, str]]:
    """The first, third and fourth part of each line that has them, and an id in each of ``numbers``."""
    for line in text.split("\n"):
        parts = line.strip().split(":")
        if len(parts) > 3 and all(_ID.fullmatch(parts[number]) for number in numbers):
            yield parts[0], parts[2], parts[3]
