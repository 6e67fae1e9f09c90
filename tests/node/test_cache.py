"""The cache that clones share: what it holds is whole, and what nobody uses goes."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.node import cache

DAY = 24 * 3600.0


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a cache of its own."""
    monkeypatch.setattr(cache, "CACHE", tmp_path)
    return tmp_path


def used_before(target: Path, days: float) -> Path:
    target.mkdir()
    (target / "file").touch()
    at = time.time() - days * DAY
    os.utime(target, (at, at))
    return target


@pytest.mark.parametrize(
    ("environment", "where"),
    [
        pytest.param({"TEST_CACHE": "/own", "XDG_CACHE_HOME": "/users"}, "/own", id="its own variable"),
        pytest.param({"XDG_CACHE_HOME": "/users"}, "/users/dockershim-tests", id="XDG_CACHE_HOME"),
        pytest.param({"XDG_CACHE_HOME": "users"}, "~/.cache/dockershim-tests", id="a relative one is ignored"),
        pytest.param({"XDG_CACHE_HOME": "", "TEST_CACHE": ""}, "~/.cache/dockershim-tests", id="empty"),
        pytest.param({}, "~/.cache/dockershim-tests", id="nothing"),
    ],
)
def test_where_it_is(environment: dict[str, str], where: str) -> None:
    assert cache._folder(environment) == Path(where).expanduser().resolve()


def test_another_content_is_another_entry() -> None:
    one, same, other = (cache.entry("engine", content) for content in ("a", b"a", "b"))
    assert one == same != other
    assert one.parent == cache.CACHE
    assert one.name.startswith("engine-")


def test_what_is_cut_short_is_not_there(folder: Path) -> None:
    target = folder / "engine-0123abcd"
    with contextlib.suppress(KeyboardInterrupt), cache.appearing(target) as made:
        (made / "half").touch()
        raise KeyboardInterrupt
    assert not cache.used(target)
    assert [path.name for path in folder.iterdir()] == ["cache.lock"]


def test_what_another_run_has_made_meanwhile_stays(folder: Path) -> None:
    target = folder / "engine-0123abcd"
    with cache.appearing(target) as made:
        (made / "ours").touch()
        target.mkdir()
        (target / "theirs").touch()
    assert [path.name for path in target.iterdir()] == ["theirs"]


MAKER = """
import sys, time
from pathlib import Path
from tests.node import cache
with cache.appearing(cache.CACHE / "engine-0123abcd") as made:
    print("making", flush=True)
    time.sleep(600)
"""


def test_what_a_killed_run_was_making_is_removed_and_what_a_living_one_makes_is_not(folder: Path) -> None:
    maker = subprocess.Popen(
        [sys.executable, "-c", MAKER],
        env=os.environ | {"TEST_CACHE": str(folder), "PYTHONPATH": str(cache.REPOSITORY)},
        stdout=subprocess.PIPE,
        text=True,
    )
    with maker:
        assert maker.stdout is not None
        assert maker.stdout.readline() == "making\n"
        cache.prune()
        assert list(folder.glob(".making-*/engine-0123abcd"))
        maker.kill()
    assert list(folder.glob(".making-*"))
    cache.prune()
    assert [path.name for path in folder.iterdir()] == ["cache.lock"]


def test_what_nobody_has_used_for_a_month_is_removed_when_the_next_is_made(folder: Path) -> None:
    old = used_before(folder / "engine-20-0123abcd", 31)
    young = used_before(folder / "engine-28-0123abcd", 29)
    again = used_before(folder / "registry-0123abcd", 31)
    assert cache.used(again)
    held = used_before(folder / "vm-image-0123abcd", 31)
    descriptor = cache.hold(held)
    foreign = used_before(folder / "apt", 31)
    with cache.appearing(folder / "base-0123abcd"):
        pass
    os.close(descriptor)
    assert not old.exists()
    assert all(one.exists() for one in (young, again, held, foreign))


def test_what_was_just_made_is_kept_whatever_time_it_has(folder: Path) -> None:
    target = folder / "engine-0123abcd"
    with cache.appearing(target) as made:
        os.utime(made, (0, 0))
    cache.prune()
    assert target.exists()
