"""Facts for the log lines of calls: names from memory, and whether a call has anything to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from checkpoints import Checkpoint
from dockershim.cri.journal import Journal
from dockershim.network.netns import Pins
from dockershim.state.failed_calls import FailedCalls
from dockershim.state.inventory import Inventory
from dockershim.state.outage import Outage
from tests.unit.state.fake_engine import CONTAINER, OTHER_SANDBOX, SANDBOX, FakeEngine, labels
from tests.unit.state.fake_pods import fake_pods

LOST, NOBODY, ENDED = "10" * 32, "ab" * 32, "c1" * 32


@pytest.fixture
async def journal(fake: FakeEngine, inventory: Inventory, tmp_path: Path) -> Journal:
    sandbox = {"io.kubernetes.sandbox.id": OTHER_SANDBOX}
    fake.add(ENDED, "k8s_main_db_ns_uid2_0", labels("container", **sandbox), status="exited")
    await inventory.refresh_container(ENDED)
    lost = Checkpoint(sandbox_id=LOST, name="gone", namespace="ns")
    await inventory.sandboxes()
    return Journal(fake_pods(inventory, [lost], pins=Pins(tmp_path)), inventory, Outage(), FailedCalls())


@pytest.mark.parametrize(
    ("subject_id", "names"),
    [
        pytest.param(SANDBOX, {"pod": "ns/web"}, id="a sandbox"),
        pytest.param(CONTAINER, {"pod": "ns/web", "container": "nginx"}, id="a container"),
        pytest.param(CONTAINER[:12], {"pod": "ns/web", "container": "nginx"}, id="a container by a short id"),
        pytest.param("5", {}, id="the start of two ids"),
        pytest.param(LOST, {"pod": "ns/gone"}, id="a sandbox that the engine has lost"),
        pytest.param(NOBODY, {}, id="nobody"),
        pytest.param("\n" * 1_000_000, {}, id="no id"),
    ],
)
async def test_names_are_known_by_ids(journal: Journal, subject_id: str, names: dict[str, str]) -> None:
    assert journal.names(subject_id) == names


@pytest.mark.parametrize(
    ("rpc", "subject_id", "done"),
    [
        pytest.param("StartContainer", CONTAINER, True, id="a start of what runs"),
        pytest.param("StopContainer", CONTAINER, False, id="a stop of what runs"),
        pytest.param("StopContainer", ENDED, True, id="a second stop"),
        pytest.param("StopContainer", NOBODY, True, id="a stop of nothing"),
        pytest.param("RemoveContainer", ENDED, False, id="a removal"),
        pytest.param("RemoveContainer", NOBODY, True, id="a second removal"),
        pytest.param("StopPodSandbox", SANDBOX, False, id="a stop of a sandbox"),
        pytest.param("StopPodSandbox", OTHER_SANDBOX, True, id="a second stop of a sandbox"),
        pytest.param("StopPodSandbox", "../" * 30, True, id="a stop of what is no sandbox"),
        pytest.param("RemovePodSandbox", OTHER_SANDBOX, False, id="a removal of a sandbox"),
        pytest.param("RemovePodSandbox", LOST, False, id="a removal of what only a checkpoint remembers"),
        pytest.param("RemovePodSandbox", NOBODY, True, id="a second removal of a sandbox"),
        pytest.param("RunPodSandbox", "", False, id="a call without an id"),
        pytest.param("CreateContainer", SANDBOX, False, id="a call that always makes something"),
    ],
)
async def test_what_is_done_already_is_known(journal: Journal, rpc: str, subject_id: str, done: bool) -> None:
    assert journal.is_done(rpc, subject_id) is done
