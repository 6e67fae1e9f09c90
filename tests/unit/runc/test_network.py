"""How dockershim-runc has a container join a network namespace that is there before it."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.runc.library import AskedNetwork, Library, Refused, damaged

NAME = "io.dockershim.network-namespace"
PREFIX = "/var/run/netns/dockershim-0123abcd-"
PATH = f"{PREFIX}{'a1' * 32}"
ASKED = f"{PREFIX}\nnet.ipv4.ping_group_range\nnet.ipv4.ip_unprivileged_port_start"
SYSCTLS = {
    "net.ipv4.ip_unprivileged_port_start": "0",
    "kernel.shmmax": '"}{',
    "net.ipv4.ping_group_range": "0 2147483647",
    "net.core.somaxconn": "5",
}


def config(annotation: str = ASKED, **linux: Any) -> dict[str, Any]:
    """A config.json in dockerd's form."""
    return {
        "ociVersion": "1.2.0",
        "process": {"args": ["/pause"], "env": ['B="linux":{"namespaces":[]}']},
        "annotations": {"other": "x", NAME: annotation},
        "linux": {
            "sysctl": dict(SYSCTLS),
            "namespaces": [{"type": "mount"}, {"type": "network"}, {"type": "pid"}],
            **linux,
        },
    }


def encoded(document: Any) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode()


def test_the_path_and_the_sysctls_are_changed(library: Library) -> None:
    assert library.read(encoded(config())) == AskedNetwork(
        PREFIX.encode(), rb"\nnet.ipv4.ping_group_range\nnet.ipv4.ip_unprivileged_port_start"
    )
    wanted = copy.deepcopy(config())
    wanted["linux"]["namespaces"][1]["path"] = PATH
    wanted["linux"]["sysctl"] = {"kernel.shmmax": '"}{', "net.core.somaxconn": "5"}
    assert json.loads(library.join(encoded(config()), PATH)) == wanted
    assert json.loads(library.join(json.dumps(config(), indent=2).encode(), PATH)) == wanted


def test_without_sysctls(library: Library) -> None:
    given = config(PREFIX)
    del given["linux"]["sysctl"]
    assert json.loads(library.join(encoded(given), PATH))["linux"] == {
        "namespaces": [{"type": "mount"}, {"type": "network", "path": PATH}, {"type": "pid"}]
    }
    assert json.loads(library.join(encoded(config(sysctl={})), PATH))["linux"]["sysctl"] == {}


NAMES = st.text(st.characters(exclude_characters="\n", exclude_categories=["Cs"]), min_size=1)


@settings(deadline=None)
@given(
    sysctls=st.dictionaries(NAMES, st.text(st.characters(exclude_categories=["Cs"]))),
    data=st.data(),
    indent=st.sampled_from([None, 1]),
)
def test_any_of_the_sysctls_are_dropped(
    library: Library, sysctls: dict[str, str], data: st.DataObject, indent: int | None
) -> None:
    """Whichever are dropped, the first, the last or all: the rest stays JSON."""
    dropped = data.draw(st.lists(st.sampled_from(sorted(sysctls)), unique=True)) if sysctls else []
    given = config("\n".join((PREFIX, *dropped)), sysctl=sysctls)
    made = json.loads(library.join(json.dumps(given, indent=indent).encode(), PATH))
    if not any("\\" in json.dumps(name) for name in dropped):
        assert made["linux"]["sysctl"] == {name: value for name, value in sysctls.items() if name not in dropped}
    del made["linux"]["sysctl"], given["linux"]["sysctl"]
    given["linux"]["namespaces"][1]["path"] = PATH
    assert made == given


@pytest.mark.parametrize(
    ("given", "words"),
    [
        pytest.param(config(""), "annotation", id="no path"),
        pytest.param(config("netns"), "annotation", id="a relative path"),
        pytest.param(config(f"{PREFIX}\n"), "annotation", id="an empty line"),
        pytest.param(config(f"{PREFIX}\tx"), "annotation", id="an escaped character"),
        pytest.param({"annotations": {NAME: 5}}, "annotation", id="a number"),
        pytest.param(config(namespaces=[{"type": "mount"}]), "no network", id="no network namespace"),
        pytest.param(config(namespaces=[{"type": "network"}] * 2), "no network", id="two"),
        pytest.param(config(namespaces=[{"type": "network", "path": "/proc/5/ns/net"}]), "joins", id="another one"),
        pytest.param(config(namespaces=[{"type": "network"}, {"type": "user"}]), "user", id="a user namespace"),
        pytest.param(config(namespaces={}), "linux.namespaces", id="namespaces that are no array"),
        pytest.param(config(sysctl=[]), "linux.sysctl", id="sysctls that are no object"),
        pytest.param(
            {"annotations": {NAME: ASKED, "io.dockershim.user-namespace": "1 1 1"}}, "user namespace", id="both"
        ),
        pytest.param(
            config("\n".join((PREFIX, *map(str, range(0, 9999, 2)))), sysctl={str(i): "" for i in range(9999)}),
            "too many sysctls",
            id="5000 sysctls",
        ),
    ],
)
def test_a_configuration_that_does_not_fit_is_refused(library: Library, given: dict[str, Any], words: str) -> None:
    with pytest.raises(Refused, match=words):
        library.join(encoded(given), PATH)


def test_what_is_there_twice_is_refused(library: Library) -> None:
    text = encoded(config()).decode()
    for name in ("namespaces", "sysctl"):
        with pytest.raises(Refused):
            library.join(text.replace('"linux":{', f'"linux":{{"{name}":[],', 1).encode(), PATH)


def test_a_path_and_a_text_that_have_no_room_are_refused(library: Library) -> None:
    text = encoded(config())
    with pytest.raises(Refused, match="too long"):
        library.join(text, "/" + "a" * 300)
    whole = library.join(text, PATH)
    assert library.join(text, PATH, room=len(whole)) == whole
    for room in (0, 1, 100, len(whole) - 1):
        with pytest.raises(Refused, match="too large"):
            library.join(text, PATH, room=room)


@settings(deadline=None, max_examples=500)
@given(data=st.data())
def test_no_change_of_bytes_makes_it_read_what_is_not_there(library: Library, data: st.DataObject) -> None:
    text = damaged(data, encoded(config()))
    try:
        made = library.join(text, PATH)
    except Refused:
        return
    assert made.startswith(text[:1])
    assert len(made) <= len(text) + 1000
