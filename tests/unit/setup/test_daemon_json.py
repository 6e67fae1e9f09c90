"""The engine's configuration, merged: what is not changed stays, each byte."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dockershim.setup.daemon_json import InvalidSettings, Wanted, live_restore, merge, runtimes

PATH = "/etc/docker/daemon.json"
ALL = Wanted(live_restore=True, log_limits=True, runtime=("dockershim-runc", "/usr/lib/dockershim/dockershim-runc"))
LIMITS = {"max-size": "32m", "max-file": "3"}


@pytest.mark.parametrize(
    ("before", "wanted", "after"),
    [
        pytest.param(None, Wanted(live_restore=True), '{\n  "live-restore": true\n}\n', id="no file"),
        pytest.param(" \n", Wanted(live_restore=True), '{\n  "live-restore": true\n}\n', id="an empty file"),
        pytest.param("{}", Wanted(live_restore=True), '{\n  "live-restore": true\n}\n', id="an empty object"),
        pytest.param("{\n}\n", Wanted(live_restore=True), '{\n  "live-restore": true\n}\n', id="one in two lines"),
        pytest.param(
            '{"b": 1, "a": "é"}',
            Wanted(live_restore=True),
            '{\n  "b": 1,\n  "a": "é",\n  "live-restore": true\n}',
            id="one line",
        ),
        pytest.param(
            '{\n\t"b": [1,2],\n\t"a": {}\n}\n',
            Wanted(live_restore=True),
            '{\n\t"b": [1,2],\n\t"a": {},\n\t"live-restore": true\n}\n',
            id="tabs",
        ),
        pytest.param(
            '{\n    "live-restore": false ,\n    "a":1}',
            Wanted(live_restore=True),
            '{\n    "live-restore": true ,\n    "a":1}',
            id="in its place",
        ),
        pytest.param(
            '{\n  "runtimes": {"kata": {"path": "/k"}},\n  "debug": false\n}\n',
            Wanted(runtime=("r", "/r")),
            '{\n  "runtimes": {\n    "kata": {\n      "path": "/k"\n    },\n    "r": {\n      "path": "/r"\n    }\n'
            '  },\n  "debug": false\n}\n',
            id="other runtimes",
        ),
        pytest.param('{"live-restore":true}', Wanted(live_restore=True), '{"live-restore":true}', id="it has it"),
    ],
)
def test_the_text(before: str | None, wanted: Wanted, after: str) -> None:
    assert merge(None if before is None else before.encode(), wanted, PATH).decode() == after


@pytest.mark.parametrize(
    ("before", "options"),
    [
        pytest.param({}, LIMITS, id="none"),
        pytest.param({"log-opts": {"max-file": "9"}}, {"max-size": "32m", "max-file": "9"}, id="a number of files"),
        pytest.param({"log-opts": {"max-size": "1g", "tag": "x"}}, {"max-size": "1g", "tag": "x"}, id="a limit"),
    ],
)
def test_limits_of_logs(before: dict[str, Any], options: dict[str, str]) -> None:
    after = json.loads(merge(json.dumps(before).encode(), Wanted(log_limits=True), PATH))
    assert after["log-opts"] == options
    assert after["log-driver"] == "json-file"


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
#: Objects, or nothing, where the merge needs objects.
DOCUMENTS = st.dictionaries(st.text(), VALUES, max_size=5).map(
    lambda one: {key: value for key, value in one.items() if key not in ("log-opts", "runtimes", "live-restore")}
)


@given(DOCUMENTS, st.sampled_from([None, 1, 2, 4, "\t"]), st.booleans())
def test_any_object(before: dict[str, Any], indent: int | str | None, ascii_only: bool) -> None:
    content = json.dumps(before, indent=indent, ensure_ascii=ascii_only).encode()
    after = merge(content, ALL, PATH)
    document = json.loads(after)
    ours = {"live-restore", "log-driver", "log-opts", "runtimes"}
    assert {key: value for key, value in document.items() if key not in ours - before.keys()} == before
    assert [key for key in document if key in before] == list(before)
    assert document["live-restore"] is True
    assert merge(after, ALL, PATH) == after
    assert live_restore(after)
    assert runtimes(after) == {"dockershim-runc"}


@given(st.binary() | st.text().map(str.encode))
def test_any_bytes_are_merged_or_refused(content: bytes) -> None:
    with contextlib.suppress(InvalidSettings):
        assert json.loads(merge(content, ALL, PATH))["live-restore"] is True
    live_restore(content)
    runtimes(content)
