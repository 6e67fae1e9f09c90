"""Pods whose network is set up beside the start of their infra container, in a namespace that is there before it."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from docker import DockerClient

from dockershim.api.cri.v1 import api_pb2 as api
from dockershim.common.own_files import with_own_thread
from dockershim.network.netns import Pins
from tests.cri_client import CRI
from tests.engine.killed import crashing, dies
from tests.engine.noticed import NoticedEngine
from tests.engine.pods import (
    BUSYBOX,
    linux_sandbox,
    pod,
    refused,
    remove_pod,
    run_pod,
    sandbox_config,
    sandbox_status,
    sandboxes,
    sh,
    start,
)
from tests.node.server import Server
from tests.node.state import Snapshot
from tests.waiting import until

ENGINE = os.environ.get("TEST_NODE_ENGINE")
RUNTIME, ODD_RUNTIME = "dockershim-runc", "odd-runc"
CONFIGURATION = Path("/etc/cni/net.d/10-test.conflist")
PLUGINS = Path("/opt/cni/bin")
#: What the odd runtime and the odd plugin do is in files of this folder, which tests write.
FOLDER = Path("/run/early-network")
SYSCTLS = {
    "net.ipv4.conf.default.rp_filter": "2",
    "net.core.somaxconn": "77",
    "net.ipv4.ip_unprivileged_port_start": "80",
    "kernel.shm_rmid_forced": "1",
}


@pytest.fixture(scope="module")
def runtimes(engine_api: DockerClient) -> Iterator[None]:
    """The engine has dockershim-runc, and one that does more before it."""
    engine_api.images.pull(BUSYBOX)
    FOLDER.mkdir()
    _write(FOLDER / ODD_RUNTIME, f'case " $* " in *" create "*) . {FOLDER}/create;; esac\nexec {RUNTIME} "$@"')
    NoticedEngine().restart(
        f"--add-runtime={RUNTIME}={shutil.which(RUNTIME)}", f"--add-runtime={ODD_RUNTIME}={FOLDER}/{ODD_RUNTIME}"
    )
    yield
    NoticedEngine().restart()
    shutil.rmtree(FOLDER)


def _write(program: Path, text: str) -> None:
    program.write_text(f"#!/bin/sh\n{text}\n")
    program.chmod(0o755)


@pytest.fixture(scope="module")
def early_server(runtimes: None, start_lasting_server: Callable[..., Server]) -> Server:
    return start_lasting_server(f"--oci-runtime={RUNTIME}", "--early-network")


@pytest.fixture
async def early(early_server: Server) -> AsyncIterator[CRI]:
    async with CRI(early_server.target) as connection:
        yield connection


@pytest.fixture(scope="module")
def odd_server(runtimes: None, start_lasting_server: Callable[..., Server]) -> Iterator[Server]:
    """A server with the odd runtime, and an odd plugin at the end of the chain."""
    folder = FOLDER / "net.d"
    folder.mkdir()
    config = json.loads(CONFIGURATION.read_text())
    config["plugins"].append({"type": "odd"})
    (folder / "10-odd.conflist").write_text(json.dumps(config))
    plugin = PLUGINS / "odd"
    plugin.write_text(
        "#!/usr/bin/env python3\n"
        "import json, os, subprocess, sys\n"
        "command, given = os.environ['CNI_COMMAND'], json.load(sys.stdin)\n"
        "if command == 'VERSION':\n"
        '    sys.exit(print(\'{"cniVersion": "0.4.0", "supportedVersions": ["0.4.0"]}\'))\n'
        "if command == 'ADD':\n"
        f"    code = subprocess.run(['sh', '{FOLDER}/add'], stdout=sys.stderr).returncode\n"
        "    print(json.dumps({'code': 100, 'msg': 'an odd ADD'} if code else given['prevResult']))\n"
        "    sys.exit(code)\n"
    )
    plugin.chmod(0o755)
    yield start_lasting_server(f"--oci-runtime={ODD_RUNTIME}", "--early-network", f"--cni-conf-dir={folder}")
    plugin.unlink()


@pytest.fixture
async def odd(odd_server: Server) -> AsyncIterator[CRI]:
    (FOLDER / "create").write_text("")
    (FOLDER / "add").write_text("")
    async with CRI(odd_server.target) as connection:
        yield connection


def is_early(engine_api: DockerClient, sandbox_id: str) -> bool:
    return bool(engine_api.api.inspect_container(sandbox_id)["HostConfig"]["Runtime"] != "runc")


# -- a pod is as others are


async def test_a_pod_is_as_one_whose_network_came_after_its_start(
    early: CRI, cri: CRI, engine_api: DockerClient, snapshot: Callable[[], Snapshot]
) -> None:
    before = snapshot()
    views = []
    for server in (early, cri):
        config = sandbox_config(
            hostname="web",
            dns_config=api.DNSConfig(servers=["10.96.0.10"], searches=["svc"]),
            linux=linux_sandbox(),
            port_mappings=[api.PortMapping(container_port=80, host_port=18080)],
        )
        config.linux.sysctls.update(SYSCTLS)
        async with pod(server, config) as sandbox_id:
            assert is_early(engine_api, sandbox_id) is (server is early)
            container_id = await start(server, sandbox_id, sandbox=config)
            views.append(await _view(server, sandbox_id, container_id, engine_api))
    first, second = views
    assert {name: set(lines) ^ set(second[name]) for name, lines in first.items()} == {name: set() for name in first}
    assert snapshot().gained(before) == {}


async def _view(cri: CRI, sandbox_id: str, container_id: str, engine_api: DockerClient) -> dict[str, Any]:
    """What can be seen of a pod and its network, without what is each pod's own."""
    ip = (await sandbox_status(cri, sandbox_id)).network.ip
    sysctls = await sh(cri, container_id, "cd /proc/sys; grep -rs . net kernel/shm* kernel/sem fs/mqueue; true")
    files = "cat /etc/hosts /etc/resolv.conf /etc/hostname /proc/net/route; id; hostname"
    network = "ip -o link; ip -o addr; ip route; ip -6 route"
    found = {
        "sysctls": sysctls,
        "files": await sh(cri, container_id, files),
        "network": await sh(cri, container_id, network),
    }
    inspect = engine_api.api.inspect_container(sandbox_id)
    own = {"Runtime", "Annotations"}
    found["host config"] = str({key: value for key, value in inspect["HostConfig"].items() if key not in own})
    assert inspect["HostConfig"]["Sysctls"] == SYSCTLS
    return {name: sorted(_without_own(text, ip).splitlines()) for name, text in found.items()}


def _without_own(text: str, ip: str) -> str:
    text = text.replace(ip, "IP")
    addresses = (r"([0-9a-f]{2}:){5}[0-9a-f]{2}", r"f[de][0-9a-f]{2}:[0-9a-f:]+")
    for own in (*addresses, r"eth0@if[0-9]+", r"link-netnsid [0-9]+"):
        text = re.sub(own, "OWN", text)
    return text


async def test_the_network_outlives_a_restart_of_the_infra_container(early: CRI, engine_api: DockerClient) -> None:
    async with pod(early) as sandbox_id:
        ip = (await sandbox_status(early, sandbox_id)).network.ip
        engine_api.api.restart(sandbox_id, timeout=0)
        found = await sandbox_status(early, sandbox_id)
        assert (found.state, found.network.ip) == (api.SANDBOX_READY, ip)
        container_id = await start(early, sandbox_id)
        assert f" {ip}/" in await sh(early, container_id, "ip -4 addr show eth0")


async def test_a_stopped_infra_container_is_not_started_by_hand(early: CRI, engine_api: DockerClient) -> None:
    """Its network is gone, and the engine would give it none."""
    sandbox_id = await run_pod(early, sandbox_config())
    await early.runtime.StopPodSandbox(api.StopPodSandboxRequest(pod_sandbox_id=sandbox_id))
    with pytest.raises(Exception, match="dockershim-runc: cannot open /var/run/netns/dockershim-"):
        engine_api.api.start(sandbox_id)
    await remove_pod(early, sandbox_id)


async def test_a_pod_on_the_nodes_network_has_none_of_its_own(early: CRI, engine_api: DockerClient) -> None:
    config = sandbox_config(linux=linux_sandbox(namespace_options=api.NamespaceOption(network=api.NODE)))
    async with pod(early, config) as sandbox_id:
        assert not is_early(engine_api, sandbox_id)


async def test_a_sysctl_of_an_interface_is_left_to_the_runtime(early: CRI) -> None:
    """There is no such interface yet, so runc refuses it, as without the option."""
    config = sandbox_config(linux=linux_sandbox())
    config.linux.sysctls["net/ipv4/conf/eth0.5/rp_filter"] = "1"
    async with refused("INVALID_ARGUMENT", "create task", "eth0"):
        await run_pod(early, config)


async def test_a_sysctl_that_the_kernel_does_not_have_is_named(early: CRI, snapshot: Callable[[], Snapshot]) -> None:
    before = snapshot()
    config = sandbox_config(linux=linux_sandbox())
    config.linux.sysctls["net.ipv4.no_such"] = "1"
    async with refused("INVALID_ARGUMENT", "config.linux.sysctls[net.ipv4.no_such]", "No such file"):
        await run_pod(early, config)
    assert snapshot().gained(before) == {}


@pytest.mark.every_engine
async def test_where_it_cannot_be_pods_start_as_before(
    start_server: Callable[..., Server], engine_api: DockerClient
) -> None:
    server = start_server("--oci-runtime=no-such", "--early-network")
    async with CRI(server.target) as cri, pod(cri) as sandbox_id:
        assert not is_early(engine_api, sandbox_id)
    problem = "Docker 28 or newer is required" if ENGINE == "20" else "the engine has no runtime 'no-such'"
    disabled = "early_network is disabled, networks are set up after the start of pods"
    assert f"{disabled}: --early-network, --oci-runtime=no-such: {problem}" in server.log.read_text()


# -- both at once


async def test_the_start_and_the_network_wait_for_each_other_in_no_order(odd: CRI) -> None:
    """Each does not go on before the other one has begun."""
    for own, other in (("create", "add"), ("add", "create")):
        wait = f"for i in $(seq 500); do test -e {FOLDER}/has-{other} && break; sleep 0.02; done"
        (FOLDER / own).write_text(f"touch {FOLDER}/has-{own}; {wait}; test -e {FOLDER}/has-{other} || exit 1\n")
    async with pod(odd):
        pass
    for name in ("create", "add"):
        (FOLDER / f"has-{name}").unlink()


async def test_what_plugins_set_is_not_set_back(odd: CRI) -> None:
    """runc sets the sysctls of the pod and the engine when the plugins are through."""
    names = ["net.ipv4.ip_unprivileged_port_start", "net.ipv4.ping_group_range", "net.core.somaxconn"]
    sets = " && ".join(f'sysctl -qw {name}="{value}"' for name, value in zip(names, ("1", "5 7", "9"), strict=True))
    (FOLDER / "add").write_text(f"nsenter --net=\"$CNI_NETNS\" sh -c '{sets}' && touch {FOLDER}/has-add\n")
    (FOLDER / "create").write_text(f"for i in $(seq 500); do test -e {FOLDER}/has-add && break; sleep 0.02; done\n")
    config = sandbox_config(linux=linux_sandbox())
    config.linux.sysctls["net.core.somaxconn"] = "77"
    async with pod(odd, config) as sandbox_id:
        container_id = await start(odd, sandbox_id, sandbox=config)
        read = "cd /proc/sys/net; cat ipv4/ip_unprivileged_port_start ipv4/ping_group_range core/somaxconn"
        assert (await sh(odd, container_id, read)).split() == ["1", "5", "7", "9"]
    (FOLDER / "has-add").unlink()


async def test_doctor_finds_that_the_program_is_gone(odd: CRI) -> None:
    program = FOLDER / ODD_RUNTIME
    program.rename(FOLDER / "away")
    try:
        doctor = [sys.executable, "-m", "dockershim", "doctor", "--json", f"--oci-runtime={ODD_RUNTIME}"]
        done = await asyncio.create_subprocess_exec(*doctor, stdout=subprocess.PIPE)
        findings = json.loads((await done.communicate())[0])["findings"]
    finally:
        (FOLDER / "away").rename(program)
    assert [one["level"] for one in findings if one["title"] == "OCI runtimes"] == ["fail"]
    assert f"{program} of the runtime {ODD_RUNTIME} is not an executable" in str(findings)


# -- failures


@pytest.mark.parametrize(
    ("create", "add", "code", "mentions"),
    [
        pytest.param("sleep 0.5; exit 3", "", "INVALID_ARGUMENT", "create task", id="the start fails last"),
        pytest.param("exit 3", "sleep 0.5", "INVALID_ARGUMENT", "create task", id="the start fails first"),
        pytest.param("sleep 0.5", "exit 1", "INTERNAL", "an odd ADD", id="the network fails first"),
        pytest.param("", "sleep 0.5; exit 1", "INTERNAL", "an odd ADD", id="the network fails last"),
        pytest.param("exit 3", "exit 1", "INVALID_ARGUMENT", "create task", id="both fail"),
        pytest.param('exec runc "$@"', "", "INTERNAL", "another network namespace", id="another runtime"),
    ],
)
async def test_a_failure_leaves_nothing(
    odd: CRI, snapshot: Callable[[], Snapshot], create: str, add: str, code: str, mentions: str
) -> None:
    before = snapshot()
    (FOLDER / "create").write_text(f"{create}\n")
    (FOLDER / "add").write_text(f"{add}\n")
    async with refused(code, mentions):
        await run_pod(odd, sandbox_config(port_mappings=[api.PortMapping(container_port=80, host_port=18080)]))
    assert snapshot().gained(before) == {}
    assert not await sandboxes(odd)


@pytest.mark.parametrize("slow", ["create", "add"])
async def test_a_caller_that_goes_leaves_nothing(odd: CRI, snapshot: Callable[[], Snapshot], slow: str) -> None:
    before = snapshot()
    (FOLDER / slow).write_text(f"touch {FOLDER}/begun; sleep 1\n")
    call = odd.runtime.RunPodSandbox(api.RunPodSandboxRequest(config=sandbox_config()))
    await until((FOLDER / "begun").exists)
    assert not call.done()
    call.cancel()
    (FOLDER / "begun").unlink()
    await until(lambda: not snapshot().gained(before), lambda: f"nothing is left; now: {snapshot().gained(before)}")


@pytest.mark.parametrize("step", ["create the network namespace", "set up the network"])
async def test_a_killed_server_leaves_what_the_next_one_clears_away(
    early_server: Server, step: str, snapshot: Callable[[], Snapshot]
) -> None:
    before = snapshot()
    async with crashing(early_server, step) as cri:
        await dies(cri.runtime.RunPodSandbox(api.RunPodSandboxRequest(config=sandbox_config())))
    async with CRI(early_server.target) as cri:
        for sandbox_id in await sandboxes(cri):
            await remove_pod(cri, sandbox_id)
    assert snapshot().gained(before) == {}


async def test_the_namespace_is_as_the_kernel_makes_them(tmp_path: Path) -> None:
    """With a loopback interface that is up, and the sysctls."""
    pins = Pins(tmp_path, tmp_path / "pins")
    made = await with_own_thread(pins.make, "a" * 64, {"net.ipv4.ping_group_range": "3 4"})
    try:
        read = ["nsenter", f"--net={made}", "sh", "-c", "ip -br link; cat /proc/sys/net/ipv4/ping_group_range"]
        shown = subprocess.run(read, capture_output=True, text=True, check=True).stdout
        assert shown.split()[:2] == ["lo", "UNKNOWN"]
        assert shown.split()[-2:] == ["3", "4"]
    finally:
        pins.unpin("a" * 64)
