"""Which differences between the reports of two servers count."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from dockershim.migrate.pods import Container, Pod, Pods, differences

SECOND = 10**9
POD = Pod("default/web", "uid", 0, ("10.0.0.1",))
MAIN = Container("main", "p", 0, 0, runs=True, hash="a")
BEFORE = Pods(10_000 * SECOND, {"p": POD}, {"c": MAIN})


def changed(one: Any, **fields: object) -> Any:
    return msgspec.structs.replace(one, **fields)


def after(pod: Pod | None = POD, **containers: Container) -> Pods:
    return Pods(10_010 * SECOND, {} if pod is None else {"p": pod}, containers)


@pytest.mark.parametrize(
    ("now", "said"),
    [
        pytest.param(after(c=MAIN), "", id="the same"),
        pytest.param(after(c=MAIN, d=changed(MAIN, name="new")), "", id="a new container"),
        pytest.param(after(c=changed(MAIN, runs=False)), "", id="it has ended"),
        pytest.param(after(changed(POD, addresses=("10.0.0.1", "fd00::1")), c=MAIN), "", id="the other family too"),
        pytest.param(after(None, c=MAIN), "pod default/web (p) was ready, and is not any more", id="not ready"),
        pytest.param(after(changed(POD, addresses=("10.0.0.2",)), c=MAIN), "and has 10.0.0.2", id="another address"),
        pytest.param(after(changed(POD, addresses=()), c=MAIN), "and has no address", id="no address"),
        pytest.param(after(changed(POD, attempt=1), c=MAIN), "is default/web, attempt 1", id="another attempt"),
        pytest.param(after(changed(POD, uid="x"), c=MAIN), "attempt 0, is default/web", id="another uid"),
        pytest.param(after(), "ran, and does not exist any more", id="gone"),
        pytest.param(
            after(c=changed(MAIN, runs=False), d=changed(MAIN, attempt=1)),
            "container main of pod default/web (c) was restarted",
            id="restarted",
        ),
        pytest.param(after(d=changed(MAIN, attempt=1)), "was restarted", id="restarted, and the first one removed"),
        pytest.param(after(c=changed(MAIN, attempt=1)), "was restarted", id="renumbered"),
        pytest.param(after(c=changed(MAIN, hash="b")), "another hash", id="what the kubelet would replace"),
        pytest.param(after(c=changed(MAIN, name="x")), "is x of pod p", id="another name"),
    ],
)
def test_differences(now: Pods, said: str) -> None:
    found = differences(BEFORE, now)
    assert [said in line for line in found] == ([True] if said else []), found


def test_an_address_more_on_the_side_before() -> None:
    both = changed(BEFORE, pods={"p": changed(POD, addresses=("10.0.0.1", "fd00::1"))})
    assert differences(both, after(c=MAIN)) == []
    assert differences(both, after(changed(POD, addresses=()), c=MAIN)) != []


@pytest.mark.parametrize(("age", "counts"), [(599, False), (601, True)])
def test_a_container_that_is_restarted_again_and_again_is_no_sign(age: int, counts: bool) -> None:
    loops = changed(MAIN, attempt=7, created=BEFORE.time - age * SECOND)
    before = changed(BEFORE, containers={"c": loops})
    assert bool(differences(before, after(d=changed(loops, attempt=8)))) == counts


def test_what_is_compared_is_kept_as_json() -> None:
    assert msgspec.json.decode(msgspec.json.encode(BEFORE), type=Pods) == BEFORE
    assert str(BEFORE) == "1 pods and 1 running containers"
