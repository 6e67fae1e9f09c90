"""The groups of a container's process, where the engine has another rule than the CRI."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dockershim.api.cri.v1 import api_pb2 as cri
from dockershim.translate.accounts import Account, find_account, to_cri_user, unsettled_user
from dockershim.translate.security import to_group_add, to_user

STRICT: dict[str, Any] = {"supplemental_groups_policy": cri.Strict}


def user(number: int, group: int | None = None) -> dict[str, Any]:
    fields = {"run_as_user": cri.Int64Value(value=number)}
    return fields if group is None else {**fields, "run_as_group": cri.Int64Value(value=group)}


@pytest.mark.parametrize(
    ("fields", "image_user", "expected"),
    [
        pytest.param({}, "", "", id="merged by the engine: root"),
        pytest.param({}, "app", "", id="merged by the engine: the image's user"),
        pytest.param(user(5), "app:staff", "", id="merged by the engine: a user without a group"),
        pytest.param(user(5, 6), "", "5", id="merged by us: a user with a group"),
        pytest.param(user(0, 0), "app", "0", id="merged by us: root with a group"),
        pytest.param({"run_as_username": "a", **user(5, 6)}, "", "a", id="merged by us: a name with a group"),
        pytest.param({}, "app:staff", "app", id="merged by us: the image's user with a group"),
        pytest.param({}, ":staff", "0", id="merged by us: the image's group"),
        pytest.param(STRICT, "", "0", id="strict by us: root"),
        pytest.param(STRICT, "app", "app", id="strict by us: the image's user"),
        pytest.param({**STRICT, **user(5)}, "app:staff", "5", id="strict by us: a user without a group"),
        pytest.param({**STRICT, **user(5, 6)}, "", "", id="strict by the engine: a user with a group"),
        pytest.param(STRICT, "app:staff", "", id="strict by the engine: the image's user with a group"),
    ],
)
def test_of_whom_the_image_is_asked(fields: dict[str, Any], image_user: str, expected: str) -> None:
    assert unsettled_user(cri.LinuxContainerSecurityContext(**fields), image_user) == expected


PASSWD = "root:x:0:0:root:/root:/bin/sh\napp:x:1000:1001::/:\nalso:x:1000:7::/:\n007:x:9:9::/:\n"
GROUP = "root:x:0:root\nstaff:x:50:other,app\nvideo:x:44:app\nagain:x:50:app\nlong:x:60:app2\nempty:x:61:\n"


@pytest.mark.parametrize(
    ("user", "uid", "gid", "groups"),
    [
        pytest.param("app", 1000, 1001, (50, 44), id="a name"),
        pytest.param("1000", 1000, 1001, (50, 44), id="a number: the first line of it counts"),
        pytest.param("0", 0, 0, (0,), id="root"),
        pytest.param("", 0, 0, (0,), id="root where nothing is said"),
        pytest.param("01000", 1000, 1001, (50, 44), id="a number with a zero before it"),
        pytest.param("007", 7, None, (), id="a number is no name"),
        pytest.param("2147483647", 2**31 - 1, None, (), id="the highest number"),
        pytest.param("2147483648", None, None, (), id="a number that is too high"),
        pytest.param("none", None, None, (), id="unknown"),
        pytest.param("9" * 5000, None, None, (), id="a number of many digits"),
        pytest.param("\u0661", None, None, (), id="a digit of another script"),
        pytest.param("app:staff", 1000, 50, (), id="a group beside the user"),
        pytest.param("app:61", 1000, 61, (), id="a group by its number"),
        pytest.param("app:1", 1000, 1, (), id="a group that is only a number"),
        pytest.param("5:", 5, None, (), id="an empty group"),
        pytest.param(":staff", 0, 50, (), id="a group alone"),
        pytest.param("app:none", None, None, (), id="an unknown group"),
        pytest.param("none:staff", None, 50, (), id="an unknown user with a group"),
        pytest.param("app:2147483648", None, None, (), id="a group's number that is too high"),
    ],
)
def test_accounts(user: str, uid: int | None, gid: int | None, groups: tuple[int, ...]) -> None:
    assert find_account(user, PASSWD, GROUP) == Account(user, uid, gid, groups)


@pytest.mark.parametrize(
    ("account", "group_add", "expected"),
    [
        pytest.param(Account("app", 5, 6, (7, 8)), (), (5, 6, [6, 7, 8]), id="its own groups"),
        pytest.param(Account("app", 5, 6, (7, 6)), ("9", "7"), (5, 6, [6, 7, 9]), id="each once, and those added"),
        pytest.param(Account("5", 5, None, ()), ("9",), (5, 0, [0, 9]), id="no group: that of root"),
        pytest.param(Account("app", None, 6, ()), (), None, id="a container that does not start"),
        pytest.param(Account("app", 5, 6, ()), ("video",), None, id="a group by name, from another shim"),
        pytest.param(None, ("9",), None, id="not read"),
    ],
)
def test_the_user_of_a_status(
    account: Account | None, group_add: tuple[str, ...], expected: tuple[int, int, list[int]] | None
) -> None:
    user = to_cri_user(account, group_add)
    shown = None if user is None else (user.linux.uid, user.linux.gid, list(user.linux.supplemental_groups))
    assert shown == expected


@pytest.mark.parametrize(
    ("passwd", "group", "expected"),
    [
        pytest.param("", "", Account("app", None, None, ()), id="no files"),
        pytest.param(
            "app:x:1\napp\n:::\napp:x:b:c:\n", GROUP, Account("app", None, None, ()), id="lines of another shape"
        ),
        pytest.param(
            "app:x:1:2", "a:x:3:app\nb:x:-4:app\nc:x\n#d:x:5:app", Account("app", 1, 2, (3, 5)), id="no last line"
        ),
        pytest.param("app:x:1:2\r\n", "a:x:3:app\r\n", Account("app", 1, 2, (3,)), id="lines of another system"),
    ],
)
def test_files_of_another_shape(passwd: str, group: str, expected: Account) -> None:
    assert find_account("app", passwd, group) == expected


LINES = st.lists(st.lists(st.sampled_from(["app", "0", "-1", "", "x", "\r", "9" * 20]), max_size=6).map(":".join))


@given(LINES.map("\n".join), LINES.map("\n".join), st.sampled_from(["app", "0", "x", ""]))
def test_whatever_the_files_hold_the_ids_are_numbers_that_an_engine_takes(passwd: str, group: str, name: str) -> None:
    account = find_account(name, passwd, group)
    assert all(0 <= number < 10**10 for number in (account.gid or 0, *account.groups))


@pytest.mark.parametrize(
    ("fields", "account", "user_field", "groups"),
    [
        pytest.param(user(5, 6), Account("5", 5, 7, (8, 9)), "5:6", ["4", "8", "9"], id="merged"),
        pytest.param(user(5, 6), Account("5", 5, 7, (4,)), "5:6", ["4"], id="merged with one that is asked for"),
        pytest.param({}, Account("app", 5, 7, (8,)), "", ["4", "8"], id="merged for the image's user"),
        pytest.param({**STRICT, **user(5)}, Account("5", 5, 7, (8,)), "5:7", ["4"], id="strict"),
        pytest.param({**STRICT, **user(5)}, Account("5", 5, None, ()), "5:0", ["4"], id="strict, of nobody"),
        pytest.param(STRICT, Account("app", 5, 7, (8,)), "app:7", ["4"], id="strict, the image's user"),
        pytest.param(STRICT, Account("app", None, None, ()), "app", ["4"], id="strict, a user that the image lacks"),
        pytest.param({**STRICT, **user(5, 6)}, None, "5:6", ["4"], id="strict by the engine"),
    ],
)
def test_what_the_engine_is_told(
    fields: dict[str, Any], account: Account | None, user_field: str, groups: list[str]
) -> None:
    context = cri.LinuxContainerSecurityContext(supplemental_groups=[4], **fields)

    assert (to_user(context, account), to_group_add(context, account)) == (user_field, groups)
