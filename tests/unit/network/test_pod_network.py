"""A pod's network: what is asked of CNI, and what is remembered of it."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast

import pytest

import cni
from dockershim.errors import FailedPrecondition, InvalidArgument, NetworkFailure, Unsupported, failure_of
from dockershim.network.netns import Pins
from dockershim.network.pod_network import (
    ENGINE_NETWORK,
    HOST_NETWORK,
    CNINetwork,
    EngineNetwork,
    KubenetSource,
    PodNetwork,
    Way,
    ways_to_detach,
)
from dockershim.translate.names import SandboxName
from dockershim.translate.records import SandboxRecord
from tests.unit.translate.kubelet import SANDBOX_ID, UID, sandbox_config

NETWORK = cni.NetworkList.parse({"cniVersion": "1.0.0", "name": "pods", "plugins": [{"type": "bridge"}]})
OLDER = cni.NetworkList.parse({"cniVersion": "0.4.0", "name": "older", "plugins": [{"type": "ptp"}]})
SANDBOX = SandboxRecord(
    id=SANDBOX_ID,
    name=SandboxName("web-0", "default", UID, 0),
    running=True,
    created_at=1,
    labels={},
    annotations={},
    runtime_handler="",
    network_mode="none",
    made_here=True,
)


def result(*addresses: str) -> cni.Result:
    return cni.Result(ips=tuple(cni.IPConfig(ipaddress.ip_interface(address)) for address in addresses))


@dataclass
class FakeRuntime:
    """Records what it was asked; ``failures`` are raised by the calls of that name."""

    result: cni.Result = field(default_factory=lambda: result("fd00::2/64", "10.1.0.2/24"))
    failures: dict[str, cni.CNIError] = field(default_factory=dict)
    cached: list[cni.CachedAttachment] = field(default_factory=list)
    calls: list[tuple[str, cni.NetworkList, cni.Attachment]] = field(default_factory=list)
    #: At which each delete logs the failures of plugins.
    levels: list[int] = field(default_factory=list)
    valid: set[tuple[str, str]] | None = None

    async def add(self, network: cni.NetworkList, attachment: cni.Attachment) -> cni.Result:
        self._call("add", network, attachment)
        return self.result

    async def delete(self, network: cni.NetworkList, attachment: cni.Attachment, level: int) -> None:
        self.levels.append(level)
        self._call("delete", network, attachment)

    def cached_attachments(self, container_id: str | None = None) -> list[cni.CachedAttachment]:
        return [one for one in self.cached if container_id in (None, one.attachment.container_id)]

    async def gc(
        self,
        network: cni.NetworkList,
        valid: Callable[[list[cni.CachedAttachment]], set[tuple[str, str]]],
    ) -> None:
        self.valid = valid(self.cached)

    def find_plugins(self, network: cni.NetworkList) -> None:
        self._fail("find_plugins")

    async def validate(self, network: cni.NetworkList) -> None:
        self._fail("validate")

    async def status(self, network: cni.NetworkList) -> None:
        self._fail("status")

    def _call(self, name: str, network: cni.NetworkList, attachment: cni.Attachment) -> None:
        self.calls.append((name, network, attachment))
        self._fail(name)

    def _fail(self, name: str) -> None:
        if name in self.failures:
            raise self.failures[name]


@dataclass
class Source:
    network: cni.NetworkList | None = NETWORK
    reason: str = "no configuration in the folder"


@pytest.fixture
def runtime() -> FakeRuntime:
    return FakeRuntime()


@pytest.fixture
def source() -> Source:
    return Source()


@pytest.fixture
def network(runtime: FakeRuntime, source: Source, tmp_path: Path) -> CNINetwork:
    return CNINetwork(
        cast("cni.Runtime", runtime), source, Pins(tmp_path, tmp_path / "pins"), tmp_path / "locks", ["10.1.0.0/24"]
    )


async def problem(network: CNINetwork | PodNetwork, patience: float = 3.0) -> str:
    """Why no pod can get a network; empty when one can."""
    return str(await failure_of(network.check(patience)) or "")


async def test_an_add_has_all_that_plugins_may_want(runtime: FakeRuntime, network: CNINetwork, tmp_path: Path) -> None:
    assert await network.set_up(SANDBOX_ID, sandbox_config()) == ("10.1.0.2", "fd00::2")

    [(call, asked, attachment)] = runtime.calls
    assert (call, asked) == ("add", NETWORK)
    assert (attachment.container_id, attachment.ifname) == (SANDBOX_ID, "eth0")
    assert dict(attachment.args)["K8S_POD_UID"] == UID
    assert set(attachment.capability_args) == {"portMappings", "ipRanges", "dns"}
    assert attachment.lock_path == tmp_path / "locks" / SANDBOX_ID


@pytest.mark.parametrize(
    ("declared", "annotations", "missed"),
    [
        pytest.param({}, {}, "portMappings", id="host ports"),
        pytest.param({}, {"kubernetes.io/egress-bandwidth": "1M"}, "bandwidth, portMappings", id="both"),
        pytest.param({"portMappings": True}, {}, "", id="heard"),
    ],
)
async def test_what_a_pod_asks_for_and_no_plugin_hears_is_logged(
    source: Source,
    network: CNINetwork,
    caplog: pytest.LogCaptureFixture,
    declared: dict[str, bool],
    annotations: dict[str, str],
    missed: str,
) -> None:
    plugins = [{"type": "bridge", "capabilities": declared}]
    source.network = cni.NetworkList.parse({"cniVersion": "1.0.0", "name": "pods", "plugins": plugins})
    config = sandbox_config()
    config.annotations.update(annotations)
    await network.set_up(SANDBOX_ID, config)

    told = [record.getMessage() for record in caplog.records]
    assert [f"asks for {missed}, but no plugin" in text for text in told] == ([True] if missed else [])


async def test_addresses_are_remembered(runtime: FakeRuntime, network: CNINetwork) -> None:
    await network.set_up(SANDBOX_ID, sandbox_config())
    runtime.result = result("10.1.0.9/24")

    assert await network.addresses(SANDBOX) == ("10.1.0.2", "fd00::2")


async def test_after_a_restart_addresses_are_those_of_the_cache(runtime: FakeRuntime, network: CNINetwork) -> None:
    runtime.cached = [cni.CachedAttachment(NETWORK, cni.Attachment(SANDBOX_ID), result("10.1.0.7/24"))]

    assert await network.addresses(SANDBOX) == ("10.1.0.7",)
    assert await network.addresses(replace(SANDBOX, id="5b" * 32)) == ()
    assert runtime.calls == []


@pytest.mark.parametrize("finished", [True, False])
async def test_only_a_finished_add_is_a_network(runtime: FakeRuntime, network: CNINetwork, finished: bool) -> None:
    """One that was cut off between its plugins has a result, too: that of the last plugin that succeeded."""
    runtime.cached = [
        cni.CachedAttachment(NETWORK, cni.Attachment(SANDBOX_ID), result("10.1.0.7/24"), finished=finished)
    ]
    assert await network.is_set_up(SANDBOX) is finished
    assert await network.addresses(SANDBOX) == (("10.1.0.7",) if finished else ())


async def test_the_loopback_that_other_shims_attach_is_no_address(runtime: FakeRuntime, network: CNINetwork) -> None:
    loopback = cni.CachedAttachment(OLDER, cni.Attachment(SANDBOX_ID), result("127.0.0.1/8", "::1/128"))
    runtime.cached = [loopback, cni.CachedAttachment(NETWORK, cni.Attachment(SANDBOX_ID), result("10.1.0.7/24"))]

    assert await network.addresses(SANDBOX) == ("10.1.0.7",)


async def test_without_a_cache_a_delete_has_the_ports_of_the_checkpoint(
    runtime: FakeRuntime, network: CNINetwork
) -> None:
    await network.tear_down(SANDBOX_ID, SANDBOX.name, [("tcp", 80, 8080, "")])

    [(call, asked, attachment)] = runtime.calls
    assert (call, asked) == ("delete", NETWORK)
    port = {"hostPort": 8080, "containerPort": 80, "protocol": "tcp", "hostIP": ""}
    assert attachment.capability_args == {"portMappings": [port]}


MASQUERADING = cni.NetworkList.parse(
    {"cniVersion": "1.0.0", "name": "pods", "plugins": [{"type": "bridge", "ipMasq": True}]}
)


class StandIns(Pins):
    """Pins that need no root; ``looks`` is what a stand-in was to look like."""

    looks: tuple[str, ...] = ()

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.pinned_ids: set[str] = set()

    def pin_stand_in(self, sandbox_id: str, interface: str, addresses: Sequence[str]) -> Path:
        self.looks = (interface, *addresses)
        self.pinned_ids.add(sandbox_id)
        return self.path(sandbox_id)

    def unpin(self, sandbox_id: str) -> None:
        self.pinned_ids.discard(sandbox_id)


@pytest.mark.parametrize(
    ("of", "fails", "namespaces"),
    [
        pytest.param(MASQUERADING, False, ["stand-in"], id="plugins that masquerade get one"),
        pytest.param(MASQUERADING, True, ["stand-in", None], id="and where they fail with it, none"),
        pytest.param(NETWORK, False, [None], id="others need none"),
    ],
)
async def test_a_stand_in_for_a_namespace_that_is_gone(
    source: Source, tmp_path: Path, of: cni.NetworkList, fails: bool, namespaces: list[str | None]
) -> None:
    given: list[str | None] = []

    class Runtime(FakeRuntime):
        async def delete(self, network: cni.NetworkList, attachment: cni.Attachment, level: int) -> None:
            assert level == (logging.DEBUG if attachment.netns else logging.WARNING), "only the last way has to work"
            assert pins.pinned_ids == ({SANDBOX_ID} if attachment.netns else set()), "it is there for one DEL only"
            given.append(attachment.netns and "stand-in")
            if fails and attachment.netns:
                raise cni.PluginNotFound("no chain")

    pins = StandIns(tmp_path)
    runtime = Runtime(cached=[cni.CachedAttachment(of, cni.Attachment(SANDBOX_ID), result("10.1.0.7/24"))])
    network = CNINetwork(cast("cni.Runtime", runtime), source, pins, tmp_path / "locks", [])
    await network.tear_down(SANDBOX_ID, SANDBOX.name)
    assert given == namespaces
    assert pins.looks == (("eth0", "10.1.0.7/24") if "stand-in" in namespaces else ())


async def test_a_stand_in_goes_even_if_every_delete_fails(source: Source, tmp_path: Path) -> None:
    """Who tries again takes what is pinned for the pod's own namespace."""
    pins = StandIns(tmp_path)
    added = cni.CachedAttachment(MASQUERADING, cni.Attachment(SANDBOX_ID), result("10.1.0.7/24"))
    runtime = FakeRuntime(cached=[added], failures={"delete": cni.PluginNotFound("no bridge")})
    network = CNINetwork(cast("cni.Runtime", runtime), source, pins, tmp_path / "locks", [])
    with pytest.raises(NetworkFailure, match="no bridge"):
        await network.tear_down(SANDBOX_ID, SANDBOX.name)
    assert (pins.pinned_ids, len(runtime.calls)) == (set(), 2)


@pytest.mark.parametrize(
    ("of", "netns", "addresses", "ways"),
    [
        pytest.param(MASQUERADING, None, ["10.1.0.7/24"], [Way.STAND_IN, Way.AS_IT_IS], id="its namespace is gone"),
        pytest.param(
            MASQUERADING, "/run/x", ["10.1.0.7/24"], [Way.RESTORED_LINK, Way.AS_IT_IS], id="its interface may be gone"
        ),
        pytest.param(MASQUERADING, None, [], [Way.AS_IT_IS], id="it had no address"),
        pytest.param(NETWORK, None, ["10.1.0.7/24"], [Way.AS_IT_IS], id="nothing masquerades"),
        pytest.param(NETWORK, "/run/x", ["10.1.0.7/24"], [Way.AS_IT_IS], id="nothing masquerades in its namespace"),
    ],
)
def test_the_ways_to_detach(of: cni.NetworkList, netns: str | None, addresses: list[str], ways: list[Way]) -> None:
    added = cni.CachedAttachment(of, cni.Attachment(SANDBOX_ID, netns), result(*addresses))
    assert ways_to_detach(added) == tuple(ways)


@pytest.mark.parametrize(
    ("restored", "fails", "deletes"),
    [
        pytest.param(True, False, 1, id="its interface is restored, and it is deleted"),
        pytest.param(True, True, 2, id="its rules have gone too: deleted as it is"),
        pytest.param(False, True, 1, id="its interface is there: a failure is one"),
        pytest.param(OSError("no"), False, 1, id="its interface cannot be restored"),
    ],
)
async def test_an_interface_that_is_gone_is_restored(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, restored: bool | OSError, fails: bool, deletes: int
) -> None:
    def restore(_: Pins, netns: Path, interface: str, addresses: Sequence[str]) -> bool:
        assert (interface, addresses) == ("eth0", ["10.1.0.7/24"])
        if isinstance(restored, OSError):
            raise restored
        return restored

    monkeypatch.setattr(Pins, "restore_link", restore)
    monkeypatch.setattr(Pins, "is_pinned", lambda *_: True)
    added = cni.CachedAttachment(MASQUERADING, cni.Attachment(SANDBOX_ID), result("10.1.0.7/24"))
    runtime = FakeRuntime(cached=[added])
    if fails:
        runtime.failures["delete"] = cni.PluginNotFound("no chain")
    network = CNINetwork(cast("cni.Runtime", runtime), Source(), Pins(tmp_path), tmp_path / "locks", [])
    with pytest.raises(NetworkFailure) if fails else nullcontext():
        await network.tear_down(SANDBOX_ID, SANDBOX.name)
    assert len(runtime.calls) == deletes
    if fails:
        assert runtime.levels == [logging.DEBUG] * (deletes - 1) + [logging.WARNING]


@pytest.mark.parametrize("network", [HOST_NETWORK, ENGINE_NETWORK])
async def test_what_the_engine_gives_it_takes_back(network: PodNetwork) -> None:
    sandbox = replace(SANDBOX, network_mode=network.engine_mode, netns_path="/proc/self/ns/net")
    assert await problem(network) == ""
    assert network.pin(sandbox) is False
    assert await network.is_set_up(sandbox)
    await network.tear_down(SANDBOX_ID, SANDBOX.name)


async def test_a_sandbox_that_has_ended_has_no_address(runtime: FakeRuntime, network: CNINetwork) -> None:
    runtime.cached = [cni.CachedAttachment(NETWORK, cni.Attachment(SANDBOX_ID), result("10.1.0.7/24"))]

    assert await network.addresses(replace(SANDBOX, running=False)) == ()


async def test_an_add_that_fails_is_a_failure_of_the_network(runtime: FakeRuntime, network: CNINetwork) -> None:
    runtime.failures["add"] = cni.PluginNotFound("no bridge")

    with pytest.raises(NetworkFailure, match="CNI network 'pods': no bridge"):
        await network.set_up(SANDBOX_ID, sandbox_config())
    assert await network.addresses(SANDBOX) == ()


async def test_a_network_without_an_address_is_none(runtime: FakeRuntime, network: CNINetwork) -> None:
    runtime.result = result()

    with pytest.raises(NetworkFailure, match="assigned no IP address to the pod"):
        await network.set_up(SANDBOX_ID, sandbox_config())


async def test_without_a_configuration_nothing_is_set_up(
    runtime: FakeRuntime, source: Source, network: CNINetwork
) -> None:
    assert await problem(network) == ""
    source.network = None

    assert await problem(network) == "no configuration in the folder"
    with pytest.raises(FailedPrecondition, match="no configuration in the folder"):
        await network.set_up(SANDBOX_ID, sandbox_config())
    assert runtime.calls == []


async def test_a_plugin_that_goes_is_missed_at_once_and_one_that_comes_back_is_asked(
    runtime: FakeRuntime, network: CNINetwork
) -> None:
    assert await problem(network) == ""
    runtime.failures["find_plugins"] = cni.PluginNotFound("no plugin bridge in /opt/cni/bin")
    assert await problem(network) == "CNI network 'pods': no plugin bridge in /opt/cni/bin"

    del runtime.failures["find_plugins"]
    runtime.failures["validate"] = cni.PluginNotFound("it has no version 1.0.0")
    assert await problem(network) == "CNI network 'pods': it has no version 1.0.0"


async def test_an_answer_is_of_the_configuration_in_force(
    runtime: FakeRuntime, source: Source, network: CNINetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    answered = asyncio.Event()

    async def validate(one: cni.NetworkList) -> None:
        asked.append(one.name)
        await answered.wait()
        if one is NETWORK:
            raise cni.PluginNotFound("it has no version 1.0.0")

    monkeypatch.setattr(runtime, "validate", validate)
    first = asyncio.create_task(problem(network))
    await asyncio.sleep(0.01)
    source.network = OLDER
    second = asyncio.create_task(problem(network))
    await asyncio.sleep(0.01)
    answered.set()

    assert (await first, await second) == ("", "")
    assert asked == ["pods", "older"]


async def test_plugins_that_do_not_answer_are_a_problem(
    runtime: FakeRuntime, network: CNINetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def validate(_: cni.NetworkList) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(runtime, "validate", validate)
    async with network:
        assert await problem(network, 0.01) == "the plugins of CNI network 'pods' do not respond"


async def test_plugins_are_not_asked_at_each_call(runtime: FakeRuntime, network: CNINetwork) -> None:
    assert await problem(network) == ""
    runtime.failures["status"] = cni.PluginNotFound("not now")

    assert await problem(network) == ""


async def test_a_delete_takes_back_what_the_cache_says(
    runtime: FakeRuntime, source: Source, network: CNINetwork
) -> None:
    """The configuration may be another one by now, and another shim may have made the attachment."""
    attachment = cni.Attachment(SANDBOX_ID, "/proc/7/ns/net", "net1", (("A", "B"),), {"portMappings": []})
    runtime.cached = [cni.CachedAttachment(OLDER, attachment, result("10.1.0.7/24"))]
    source.network = None

    await network.tear_down(SANDBOX_ID, SANDBOX.name)

    [(call, asked, found)] = runtime.calls
    assert (call, asked) == ("delete", OLDER)
    assert (found.ifname, found.args, found.capability_args) == ("net1", (("A", "B"),), {"portMappings": []})
    assert found.netns is None, "a process id of old can be another process by now"


async def test_a_delete_without_a_cache_is_tried_with_the_configuration_in_force(
    runtime: FakeRuntime, network: CNINetwork
) -> None:
    await network.tear_down(SANDBOX_ID, SANDBOX.name)

    [(call, asked, attachment)] = runtime.calls
    assert (call, asked, attachment.container_id) == ("delete", NETWORK, SANDBOX_ID)


async def test_a_delete_that_fails_is_done_again(runtime: FakeRuntime, network: CNINetwork) -> None:
    runtime.failures["delete"] = cni.PluginNotFound("no bridge")
    with pytest.raises(NetworkFailure, match="CNI network 'pods': no bridge"):
        await network.tear_down(SANDBOX_ID, SANDBOX.name)
    runtime.failures.clear()

    await network.tear_down(SANDBOX_ID, SANDBOX.name)
    assert len(runtime.calls) == 2


async def test_the_pin_and_the_lock_go_with_the_last_attachment(
    runtime: FakeRuntime, source: Source, tmp_path: Path
) -> None:
    """Without the pin a DEL that is tried again would run without the namespace, and leave what is in it."""
    pins = StandIns(tmp_path)
    pins.pinned_ids.add(SANDBOX_ID)
    network = CNINetwork(cast("cni.Runtime", runtime), source, pins, tmp_path / "locks", [])
    await network.set_up(SANDBOX_ID, sandbox_config())
    (tmp_path / "locks" / SANDBOX_ID).touch()
    runtime.failures["delete"] = cni.PluginNotFound("no bridge")
    with pytest.raises(NetworkFailure):
        await network.tear_down(SANDBOX_ID, SANDBOX.name)
    assert (pins.pinned_ids, (tmp_path / "locks" / SANDBOX_ID).exists()) == ({SANDBOX_ID}, True)
    assert await network.addresses(SANDBOX) == (), "part of it may be gone"

    runtime.failures.clear()
    await network.tear_down(SANDBOX_ID, SANDBOX.name)
    assert (pins.pinned_ids, list((tmp_path / "locks").iterdir())) == (set(), [])
    assert await network.addresses(SANDBOX) == ()


async def test_every_attachment_is_deleted_though_one_fails(runtime: FakeRuntime, network: CNINetwork) -> None:
    runtime.failures["delete"] = cni.PluginNotFound("gone")
    runtime.cached = [cni.CachedAttachment(one, cni.Attachment(SANDBOX_ID), None) for one in (OLDER, NETWORK)]

    with pytest.raises(NetworkFailure, match=r"'older': gone; CNI network 'pods': gone"):
        await network.tear_down(SANDBOX_ID, SANDBOX.name)


async def test_kubenet_waits_for_the_nodes_pod_cidrs(runtime: FakeRuntime, tmp_path: Path) -> None:
    source = KubenetSource(mtu=0, hairpin_mode="none")
    network = CNINetwork(cast("cni.Runtime", runtime), source, Pins(tmp_path), tmp_path, [])
    assert "--pod-cidr" in await problem(network)

    network.set_pod_cidr("10.1.0.0/24,fd00::/64")

    assert await problem(network) == ""
    assert source.network is not None
    assert [plugin.type for plugin in source.network.plugins] == ["bridge", "portmap", "firewall", "bandwidth"]
    with pytest.raises(InvalidArgument, match="pod_cidr"):
        network.set_pod_cidr("10.1.0.0")


async def test_the_engines_own_network_has_the_engines_addresses() -> None:
    network = EngineNetwork()
    sandbox = replace(SANDBOX, addresses=("fd00::2", "172.17.0.2"))

    assert await network.set_up(sandbox.id, sandbox_config(), sandbox.addresses) == ("172.17.0.2", "fd00::2")
    assert await network.addresses(sandbox) == ("172.17.0.2", "fd00::2")
    with pytest.raises(NetworkFailure, match="no IP address"):
        await network.set_up(SANDBOX_ID, sandbox_config())
    config = sandbox_config()
    config.annotations["kubernetes.io/ingress-bandwidth"] = "1M"
    with pytest.raises(Unsupported, match="ingress-bandwidth"):
        await network.set_up(sandbox.id, config, sandbox.addresses)


def attached(container_id: str, netns: Path | str, network: cni.NetworkList = NETWORK) -> cni.CachedAttachment:
    return cni.CachedAttachment(network, cni.Attachment(container_id, str(netns)), result("10.1.0.7/24"))


def test_what_is_left_of_ours_is_told_and_nothing_of_others(
    runtime: FakeRuntime, network: CNINetwork, tmp_path: Path
) -> None:
    assert network.remembered() == set()

    pins, locks = tmp_path / "pins", tmp_path / "locks"
    ours = Pins(tmp_path, pins)
    others = Pins(tmp_path / "of-another-server", pins)
    for path in (ours.path("pinned"), others.path("no"), pins / "cni-5a", locks / "locked"):
        path.parent.mkdir(exist_ok=True)
        path.touch()
    runtime.cached = [
        attached("ours", ours.path("ours")),
        attached("of-another-server", others.path("of-another-server")),
        attached("of-another-runtime", "/run/netns/x"),
        attached("of-a-process", "/proc/4711/ns/net"),
        attached("at-a-pin-of-another", ours.path("ours")),
    ]

    assert network.remembered() == {"pinned", "locked", "ours"}


@pytest.mark.parametrize(
    ("version", "valid"),
    [
        pytest.param("1.0.0", None, id="before 1.1.0 plugins have no garbage collection"),
        pytest.param(
            "1.1.0",
            {("alive", "eth0"), ("of-another-runtime", "eth0")},
            id="what others attached is valid, what we attached only for what is known",
        ),
    ],
)
async def test_garbage_is_what_is_ours_and_known_to_nobody(
    runtime: FakeRuntime,
    source: Source,
    network: CNINetwork,
    tmp_path: Path,
    version: str,
    valid: set[tuple[str, str]] | None,
) -> None:
    source.network = cni.NetworkList.parse({"cniVersion": version, "name": "pods", "plugins": [{"type": "bridge"}]})
    pins = Pins(tmp_path, tmp_path / "pins")
    runtime.cached = [
        attached("gone", pins.path("gone")),
        attached("alive", pins.path("alive")),
        attached("of-another-runtime", "/run/netns/x"),
    ]

    await network.collect_garbage(lambda: {"alive"})

    assert runtime.valid == valid
