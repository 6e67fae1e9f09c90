"""Users of images are read once, in a container that is always removed again."""

from __future__ import annotations

import asyncio
import io
import tarfile
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dockershim.cri import accounts as accounts_module
from dockershim.cri import engine_containers
from dockershim.cri.accounts import READER_LABEL, ImageAccounts
from dockershim.cri.engine_containers import EngineContainers
from dockershim.errors import EngineFailure, FailedPrecondition, NotFound, ShimError
from dockershim.translate.accounts import Account
from dockershim.translate.image import ImageRecord
from dockershim.translate.records import ContainerRecord

OWNER = Path("/run/dockershim")
IMAGE = ImageRecord(id="sha256:" + "1b" * 32, tags=(), digests=(), size=1)
FILES = {"/etc/passwd": b"app:x:1:2::/:\n", "/etc/group": b"video:x:3:app\n"}


def archive(path: str, content: bytes | str) -> bytes:
    """What the engine answers: a file with this content, or a link to this path."""
    member = tarfile.TarInfo(path.rpartition("/")[2])
    if isinstance(content, str):
        member.type, member.linkname = tarfile.SYMTYPE, content
    else:
        member.size = len(content)
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w") as tar:
        tar.addfile(member, io.BytesIO(content if isinstance(content, bytes) else b""))
    return whole.getvalue()


class Engine:
    """``archives`` are its answers by path; ``containers`` are there by name, ``made`` is how many were ever made.

    Set ``hold`` to keep it from answering; ``reading`` is set when a file is asked for.
    """

    def __init__(self) -> None:
        self.archives = {path: archive(path, content) for path, content in FILES.items()}
        self.containers: dict[str, Mapping[str, str]] = {}
        self.made = 0
        self.hold: asyncio.Event | None = None
        self.reading = asyncio.Event()

    async def post(self, path: str, body: Any, *, params: Any) -> dict[str, Any]:
        self.made += 1
        self.containers[params["name"]] = body["Labels"]
        return {"Id": params["name"]}

    async def delete(self, path: str, *, params: Any) -> None:
        del self.containers[path.rpartition("/")[2]]

    async def get(self, path: str, *, params: Any) -> list[dict[str, Any]]:
        return [{"Id": name, "Names": [f"/{name}"], "Labels": labels} for name, labels in self.containers.items()]

    @asynccontextmanager
    async def deadline(self, what: str) -> AsyncIterator[None]:
        yield

    @asynccontextmanager
    async def stream(self, method: str, path: str, *, params: Mapping[str, str]) -> AsyncIterator[Any]:
        self.reading.set()
        if self.hold is not None:
            await self.hold.wait()
        if params["path"] not in self.archives:
            raise NotFound("no such file")
        content = asyncio.StreamReader()
        content.feed_data(self.archives[params["path"]])
        content.feed_eof()

        async def pieces() -> AsyncIterator[bytes]:
            while piece := await content.read(600):
                yield piece

        yield SimpleNamespace(content=SimpleNamespace(iter_any=pieces))


@pytest.fixture
def engine() -> Engine:
    return Engine()


@pytest.fixture
def accounts(engine: Engine) -> ImageAccounts:
    inventory: Any = SimpleNamespace(forget=lambda _: None)
    asked: Any = engine

    async def used(image_id: str) -> ImageRecord | None:
        return IMAGE if image_id == IMAGE.id else None

    images: Any = SimpleNamespace(used=used)
    return ImageAccounts(asked, EngineContainers(asked, inventory, lambda: 5.0), images, OWNER)


async def test_those_who_ask_at_the_same_time_and_later_share_one_container(
    engine: Engine, accounts: ImageAccounts
) -> None:
    engine.hold = asyncio.Event()
    asking = [asyncio.create_task(accounts.find(IMAGE, "app")) for _ in range(5)]
    await engine.reading.wait()
    assert [labels[READER_LABEL] for labels in engine.containers.values()] == [str(OWNER)]
    engine.hold.set()

    assert await asyncio.gather(*asking) == [Account("app", 1, 2, (3,))] * 5
    assert await accounts.find(IMAGE, "app") == Account("app", 1, 2, (3,))
    assert (engine.made, engine.containers) == (1, {})
    assert await accounts.find(IMAGE, "other") == Account("other", None, None, ())
    assert engine.made == 2


async def test_a_caller_that_goes_leaves_no_container(engine: Engine, accounts: ImageAccounts) -> None:
    engine.hold = asyncio.Event()
    asking = asyncio.create_task(accounts.find(IMAGE, "app"))
    await engine.reading.wait()
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert engine.containers == {}


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        pytest.param({"/etc/passwd": "users", "/etc/users": FILES["/etc/passwd"]}, (1, 2, (3,)), id="a link beside it"),
        pytest.param(
            {"/etc/passwd": "/usr/users", "/usr/users": FILES["/etc/passwd"]}, (1, 2, (3,)), id="an absolute link"
        ),
        pytest.param({"/etc/passwd": "nowhere"}, (None, None, ()), id="a link to nothing"),
        pytest.param({"/etc/passwd": "passwd"}, (None, None, ()), id="a link to itself"),
        pytest.param({"/etc/group": b"video:x:3:app\n" + b"#" * (1 << 19)}, (1, 2, (3,)), id="a long file"),
        pytest.param({"/etc/group": b"\xff:x:4:app\nvideo:x:3:app\n"}, (1, 2, (4, 3)), id="no UTF-8"),
    ],
)
async def test_files_of_images(
    engine: Engine, accounts: ImageAccounts, answers: Mapping[str, Any], expected: tuple[Any, ...]
) -> None:
    engine.archives |= {path: archive(path, content) for path, content in answers.items()}
    assert await accounts.find(IMAGE, "app") == Account("app", *expected)
    assert engine.containers == {}


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        pytest.param(archive("/etc/passwd", bytes(3 << 20)), FailedPrecondition, id="a file that is too long"),
        pytest.param(b"x" * 1024, EngineFailure, id="no archive"),
        pytest.param(archive("/etc/passwd", bytes(5000))[:2048], EngineFailure, id="half of an archive"),
    ],
)
async def test_answers_that_cannot_be_used(
    engine: Engine, accounts: ImageAccounts, answer: bytes, error: type[ShimError]
) -> None:
    engine.archives["/etc/passwd"] = answer
    with pytest.raises(error, match="/etc/passwd of the image"):
        await accounts.find(IMAGE, "app")
    assert engine.containers == {}


async def test_what_a_killed_server_left_is_removed_and_nothing_else(
    engine: Engine, accounts: ImageAccounts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_containers, "_LATE_CREATE", 0.0)
    engine.containers = {"dockershim-users-0": {READER_LABEL: str(OWNER)}, "k8s_app_of_a_hostile_image": {}}
    engine.hold = asyncio.Event()
    asking = asyncio.create_task(accounts.find(IMAGE, "app"))
    await engine.reading.wait()

    await accounts.remove_leftovers()

    assert len(engine.containers) == 2
    engine.hold.set()
    assert await asking == Account("app", 1, 2, (3,))
    assert list(engine.containers) == ["k8s_app_of_a_hostile_image"]


def container(user: str = "app", image_id: str = IMAGE.id) -> ContainerRecord:
    record: Any = SimpleNamespace(user=user, image_id=image_id)
    found: ContainerRecord = record
    return found


async def test_statuses_share_one_reading(engine: Engine, accounts: ImageAccounts) -> None:
    found = await asyncio.gather(*(accounts.used_by(container()) for _ in range(20)))
    assert found == [(IMAGE, Account("app", 1, 2, (3,)))] * 20
    assert await accounts.used_by(container()) == found[0]
    assert engine.made == 1


async def test_a_status_without_its_image_has_no_user(engine: Engine, accounts: ImageAccounts) -> None:
    assert await accounts.used_by(container(image_id="sha256:0")) == (None, None)
    assert engine.made == 0


async def test_statuses_wait_only_once_for_an_engine_that_hangs(
    engine: Engine, accounts: ImageAccounts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accounts_module, "_PATIENCE", 0.05)
    engine.hold = asyncio.Event()
    begun = asyncio.get_running_loop().time()
    for number in range(100):
        assert await accounts.used_by(container(str(number))) == (IMAGE, None)
    assert asyncio.get_running_loop().time() - begun < 5
    await asyncio.sleep(0.1)
    assert engine.made == 2, "so many are read at once"
    assert sum("users of sha256" in task.get_name() for task in asyncio.all_tasks()) == 20

    await accounts.close()
    assert engine.containers == {}


async def test_what_was_late_is_there_for_the_next_status(
    engine: Engine, accounts: ImageAccounts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accounts_module, "_PATIENCE", 0.05)
    engine.hold = asyncio.Event()
    assert await accounts.used_by(container()) == (IMAGE, None)
    engine.hold.set()
    await asyncio.wait([task for task in asyncio.all_tasks() if "users of sha256" in task.get_name()])
    assert await accounts.used_by(container()) == (IMAGE, Account("app", 1, 2, (3,)))
    assert engine.made == 1


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(b"x" * 1024, id="no archive"),
        pytest.param(archive("/etc/group", b"".join(b"g%d:x:%d:app\n" % (n, n) for n in range(1, 200))), id="too many"),
    ],
)
async def test_what_cannot_be_read_is_not_read_for_each_status(
    engine: Engine, accounts: ImageAccounts, answer: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.archives["/etc/group"] = answer
    for _ in range(5):
        assert await accounts.used_by(container()) == (IMAGE, None)
    assert (engine.made, engine.containers) == (1, {})

    engine.archives["/etc/group"] = archive("/etc/group", FILES["/etc/group"])
    clock = time.monotonic() + 60
    monkeypatch.setattr(time, "monotonic", lambda: clock)
    assert await accounts.used_by(container()) == (IMAGE, Account("app", 1, 2, (3,)))
