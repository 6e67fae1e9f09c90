"""A wrong request gets its gRPC code and a message that names the mistake, and leaves nothing behind."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from docker import DockerClient

from dockershim.api.cri.v1 import api_pb2 as api
from tests.cri_client import CRI
from tests.engine import networks
from tests.engine.pods import (
    BUSYBOX,
    container,
    container_config,
    containers,
    create,
    linux_container,
    linux_sandbox,
    pod,
    refused,
    remove,
    remove_pod,
    run_pod,
    sandbox_config,
    sandbox_status,
    sandboxes,
    start,
    status,
    stop,
)
from tests.node.engine import Engine
from tests.node.server import Server
from tests.node.state import Snapshot
from tests.waiting import wait_until

#: Only the engine refuses these, with its own messages.
BY_THE_ENGINE = pytest.mark.every_engine
METADATA = {"name": "bad", "namespace": "tests", "uid": "bad-uid"}


@pytest.fixture(autouse=True, scope="module")
def image(engine_api: DockerClient) -> None:
    engine_api.images.pull(BUSYBOX)


@pytest.fixture(autouse=True)
def nothing_is_left(snapshot: Callable[[], Snapshot]) -> Iterator[None]:
    before = snapshot()
    yield
    # The kernel ends the links of a network namespace a little after the namespace.
    wait_until(lambda: set(snapshot().gained(before)) != {"links"})
    assert snapshot().gained(before) == {}


def metadata(**fields: Any) -> api.PodSandboxConfig:
    return sandbox_config(metadata=api.PodSandboxMetadata(**{**METADATA, **fields}))


def sandbox_with(linux: dict[str, Any]) -> api.PodSandboxConfig:
    return sandbox_config(linux=api.LinuxPodSandboxConfig(**linux))


def namespaces(**options: Any) -> api.PodSandboxConfig:
    return sandbox_config(linux=linux_sandbox(namespace_options=api.NamespaceOption(**options)))


LOCALHOST = api.SecurityProfile(profile_type=api.SecurityProfile.Localhost, localhost_ref="/no/such/profile")
OTHER_ENUM = 99


@pytest.mark.parametrize(
    ("config", "mentions"),
    [
        pytest.param(api.PodSandboxConfig(), "metadata.name", id="no metadata"),
        pytest.param(metadata(name=""), "metadata.name", id="no name"),
        pytest.param(metadata(namespace=""), "metadata.namespace", id="no namespace"),
        pytest.param(metadata(uid=""), "metadata.uid", id="no uid"),
        pytest.param(metadata(name="a\nb"), "metadata.name", id="a line break in a name"),
        pytest.param(metadata(name="a;CNI_ARGS=b"), "metadata.name", id="a separator of plugin arguments"),
        pytest.param(namespaces(network=OTHER_ENUM), "namespace_options.network", id="unknown network mode"),
        pytest.param(namespaces(pid=OTHER_ENUM), "namespace_options.pid", id="unknown PID mode"),
        pytest.param(namespaces(pid=api.TARGET), "namespace_options.pid", id="PID mode of containers"),
        pytest.param(namespaces(network=api.CONTAINER), "namespace_options.network", id="network mode of containers"),
        pytest.param(
            sandbox_config(port_mappings=[api.PortMapping(protocol=OTHER_ENUM, container_port=80, host_port=80)]),  # type: ignore[arg-type]
            "port_mappings.protocol",
            id="unknown protocol",
        ),
        pytest.param(
            sandbox_config(port_mappings=[api.PortMapping(container_port=80, host_port=70000)]),
            "port_mappings.host_port",
            id="a port that is none",
        ),
        pytest.param(
            sandbox_config(port_mappings=[api.PortMapping(container_port=80, host_port=80, host_ip="localhost")]),
            "port_mappings.host_ip",
            id="a host address that is none",
        ),
        pytest.param(sandbox_config(log_directory="logs"), "log_directory", id="relative log directory"),
        pytest.param(sandbox_config(log_directory="/var/log/../../etc"), "log_directory", id="dots in log directory"),
        pytest.param(sandbox_config(hostname="h" * 65), "hostname", id="hostname too long for the kernel"),
        pytest.param(sandbox_with({"sysctls": {"vm.swappiness": "1"}}), "vm.swappiness", id="a sysctl of the node"),
        pytest.param(
            sandbox_with({"sysctls": {"net.ipv4.no_such_thing": "1"}}),
            "no_such_thing",
            id="a sysctl that is none",
            marks=BY_THE_ENGINE,
        ),
        pytest.param(
            sandbox_config(dns_config=api.DNSConfig(servers=["10.0.0.1\nnameserver 6.6.6.6"])),
            "dns_config.servers",
            id="a line break for resolv.conf",
        ),
        pytest.param(sandbox_config(linux=linux_sandbox(seccomp=LOCALHOST)), "/no/such/profile", id="no such profile"),
        pytest.param(sandbox_config(labels={"io.kubernetes.sandbox.id": "x"}), "labels", id="a label of our own"),
        pytest.param(
            sandbox_config(annotations={"kubernetes.io/ingress-bandwidth": "fast"}),
            "kubernetes.io/ingress-bandwidth",
            id="a bandwidth that is none",
        ),
        pytest.param(
            sandbox_config(windows=api.WindowsPodSandboxConfig()), "config.windows", id="not honoured: Windows"
        ),
        pytest.param(
            namespaces(userns_options=api.UserNamespace(mode=api.POD)),
            "userns_options",
            id="not honoured: user namespaces",
        ),
    ],
)
async def test_sandboxes_that_cannot_be(cri: CRI, config: api.PodSandboxConfig, mentions: str) -> None:
    async with refused("INVALID_ARGUMENT", mentions):
        await run_pod(cri, config)
    assert await sandboxes(cri) == {}


def with_mounts(*mounts: api.Mount) -> api.ContainerConfig:
    return container_config(mounts=mounts)


def mount(**fields: Any) -> api.Mount:
    return api.Mount(**{"host_path": "/tmp", "container_path": "/mounted", **fields})


def resources(**fields: Any) -> api.ContainerConfig:
    return container_config(linux=api.LinuxContainerConfig(resources=api.LinuxContainerResources(**fields)))


def context(**fields: Any) -> api.ContainerConfig:
    return container_config(linux=linux_container(**fields))


@pytest_asyncio.fixture(scope="class", loop_scope="class")
async def one_pod(server: Server) -> AsyncIterator[tuple[str, api.PodSandboxConfig]]:
    """One pod for many refused requests: it also shows that none of them left anything in it."""
    config = sandbox_config()
    async with CRI(server.target) as cri:
        sandbox_id = await run_pod(cri, config)
    yield sandbox_id, config
    async with CRI(server.target) as cri:
        await remove_pod(cri, sandbox_id)


class TestContainersThatCannotBe:
    @pytest.mark.parametrize(
        ("config", "mentions"),
        [
            pytest.param(container_config(metadata=None), "metadata.name", id="no metadata"),
            pytest.param(container_config(image=None), "image", id="no image"),
            pytest.param(
                container_config(image=api.ImageSpec(image=BUSYBOX, runtime_handler="none")),
                "config.image.runtime_handler",
                id="an image for a runtime that the engine lacks",
            ),
            pytest.param(container_config(image=api.ImageSpec(image="UPPER/ CASE")), "UPPER/ CASE", id="no reference"),
            pytest.param(container_config(log_path="../../../etc/passwd"), "log_path", id="a log path that leaves"),
            pytest.param(container_config(log_path="/../x/y"), "log_path", id="an absolute log path that leaves"),
            pytest.param(container_config(log_path="."), "log_path", id="the log directory itself"),
            pytest.param(container_config(working_dir="here"), "working_dir", id="relative working directory"),
            pytest.param(container_config(envs=[api.KeyValue(key="A=B", value=b"")]), "A=B", id="a variable's name"),
            pytest.param(
                container_config(envs=[api.KeyValue(key="A", value=b"\xff")]), "envs[A]", id="a value not UTF-8"
            ),
            pytest.param(container_config(stop_signal=OTHER_ENUM), "stop_signal", id="unknown signal"),
            pytest.param(with_mounts(mount(propagation=OTHER_ENUM)), "propagation", id="unknown propagation"),
            pytest.param(with_mounts(mount(), mount(host_path="/var")), "/mounted", id="a mount point twice"),
            pytest.param(
                with_mounts(mount(), mount(container_path="/x/../mounted/")), "mounted", id="twice in two spellings"
            ),
            pytest.param(with_mounts(mount(host_path="relative")), "host_path", id="relative host path"),
            pytest.param(with_mounts(mount(host_path="/etc/passwd/x")), "/etc/passwd", id="a host path below a file"),
            pytest.param(with_mounts(mount(container_path="")), "container_path", id="no container path"),
            pytest.param(with_mounts(mount(container_path="/")), "/", id="over the root"),
            pytest.param(
                with_mounts(mount(recursive_read_only=True)), "recursive_read_only", id="recursive, not read-only"
            ),
            pytest.param(
                container_config(devices=[api.Device(host_path="/dev/none", container_path="/dev/none")]),
                "/dev/none",
                id="a device that does not exist",
            ),
            pytest.param(
                container_config(devices=[api.Device(host_path="/etc/passwd")]), "/etc/passwd", id="a file, no device"
            ),
            pytest.param(
                container_config(devices=[api.Device(host_path="/dev/null", container_path="/dev/x", permissions="x")]),
                "permissions",
                id="device permissions",
            ),
            pytest.param(resources(cpu_quota=-2), "cpu_quota", id="negative quota"),
            pytest.param(resources(oom_score_adj=1001), "oom_score_adj", id="OOM score"),
            pytest.param(
                resources(memory_limit_in_bytes=1024),
                "memory",
                id="less memory than a container needs",
                marks=BY_THE_ENGINE,
            ),
            pytest.param(resources(cpuset_cpus="4096"), "4096", id="a CPU that the node has not", marks=BY_THE_ENGINE),
            pytest.param(context(run_as_group=api.Int64Value(value=1)), "run_as_group", id="a group without a user"),
            pytest.param(
                context(run_as_user=api.Int64Value(value=1), run_as_username="a"), "run_as_username", id="user twice"
            ),
            pytest.param(context(run_as_user=api.Int64Value(value=-1)), "run_as_user", id="negative user"),
            pytest.param(context(privileged=True), "privileged", id="privileged in a sandbox that is not"),
            pytest.param(context(seccomp=LOCALHOST), "/no/such/profile", id="a seccomp profile that does not exist"),
            pytest.param(
                context(capabilities=api.Capability(add_capabilities=["FLY"])),
                "FLY",
                id="a capability that is none",
                marks=BY_THE_ENGINE,
            ),
            pytest.param(context(namespace_options=api.NamespaceOption(pid=api.TARGET)), "target_id", id="no target"),
            pytest.param(
                context(namespace_options=api.NamespaceOption(network=api.NODE)),
                "namespace_options.network",
                id="the node's network in a sandbox with its own",
            ),
            pytest.param(
                context(capabilities=api.Capability(add_ambient_capabilities=["CHOWN"])),
                "add_ambient_capabilities",
                id="not honoured: ambient capabilities",
            ),
            pytest.param(
                context(namespace_options=api.NamespaceOption(userns_options=api.UserNamespace(mode=api.POD))),
                "userns_options",
                id="not honoured: user namespaces",
            ),
            pytest.param(
                with_mounts(mount(image=api.ImageSpec(image=BUSYBOX))), ".host_path", id="an image and a host path"
            ),
            pytest.param(
                with_mounts(mount(uidMappings=[api.IDMapping(length=1)])),
                "uidMappings",
                id="not honoured: id-mapped mount",
            ),
            pytest.param(
                with_mounts(mount(mount_options=["noexec"])), "mount_options", id="not honoured: mount options"
            ),
            pytest.param(
                container_config(annotations={"io.kubernetes.cri.rdt-class": "gold"}),
                "rdt-class",
                id="not honoured: RDT class",
            ),
            pytest.param(
                container_config(windows=api.WindowsContainerConfig()), "config.windows", id="not honoured: Windows"
            ),
        ],
    )
    async def test_each(
        self, cri: CRI, one_pod: tuple[str, api.PodSandboxConfig], config: api.ContainerConfig, mentions: str
    ) -> None:
        sandbox_id, sandbox = one_pod
        async with refused("INVALID_ARGUMENT", mentions):
            await create(cri, sandbox_id, config, sandbox)
        assert await containers(cri) == {}


@pytest.mark.every_engine
async def test_a_container_of_an_image_that_does_not_exist(cri: CRI) -> None:
    async with pod(cri) as sandbox_id:
        config = container_config(image=api.ImageSpec(image="registry.k8s.io/none:1"))
        async with refused("NOT_FOUND", "registry.k8s.io/none:1"):
            await create(cri, sandbox_id, config)
        assert await containers(cri) == {}


@pytest.mark.every_engine
async def test_a_pull_of_an_image_that_does_not_exist(cri: CRI) -> None:
    async with refused("NOT_FOUND", "registry.k8s.io/none:1"):
        await cri.images.PullImage(api.PullImageRequest(image=api.ImageSpec(image="registry.k8s.io/none:1")))


@pytest.mark.parametrize("name", ["", "UPPER/CASE", "a b", "registry.k8s.io/x:", "../images/json", "x@sha256:12"])
async def test_a_pull_of_a_reference_that_is_none(cri: CRI, name: str) -> None:
    async with refused("INVALID_ARGUMENT", name):
        await cri.images.PullImage(api.PullImageRequest(image=api.ImageSpec(image=name)))


async def test_a_container_of_a_sandbox_that_is_none(cri: CRI) -> None:
    for sandbox_id in ("f" * 64, "../info"):
        async with refused("NOT_FOUND", sandbox_id):
            await create(cri, sandbox_id, container_config())
    async with refused("INVALID_ARGUMENT", "pod_sandbox_id"):
        await create(cri, "", container_config())


async def test_missing_ids(cri: CRI) -> None:
    for call in (stop, remove, status):
        async with refused("INVALID_ARGUMENT", "container_id"):
            await call(cri, "")
    for pod_call in (remove_pod, sandbox_status):
        async with refused("INVALID_ARGUMENT", "pod_sandbox_id"):
            await pod_call(cri, "")


async def test_ids_that_are_paths_reach_nothing(cri: CRI, engine_api: DockerClient) -> None:
    image_id = engine_api.images.get(BUSYBOX).id
    for hostile in (f"../images/{BUSYBOX}", f"..%2fimages%2f{image_id}", "/", "..", "../../../../proc/1/ns/net"):
        await remove_pod(cri, hostile)
        await stop(cri, hostile)
        await remove(cri, hostile)
        async with refused("NOT_FOUND"):
            await sandbox_status(cri, hostile)
    assert engine_api.images.get(BUSYBOX).id == image_id


@pytest.mark.parametrize("grace", [-1, -(2**63), 2**63 - 1])
async def test_a_grace_period_that_is_none(cri: CRI, grace: int) -> None:
    async with container(cri) as container_id:
        async with refused("INVALID_ARGUMENT", "timeout"):
            await stop(cri, container_id, grace)
        assert (await status(cri, container_id)).state == api.CONTAINER_RUNNING


async def test_unknown_states_in_filters(cri: CRI) -> None:
    async with refused("INVALID_ARGUMENT", "state"):
        await sandboxes(cri, state=api.PodSandboxStateValue(state=OTHER_ENUM))  # type: ignore[arg-type]
    async with refused("INVALID_ARGUMENT", "state"):
        await containers(cri, state=api.ContainerStateValue(state=OTHER_ENUM))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("fields", "mentions"),
    [
        pytest.param({"linux": {"cpu_shares": -1}}, "cpu_shares", id="negative shares"),
        pytest.param({"linux": {"unified": {"../x": "1"}}}, "unified", id="a path for a cgroup file"),
        pytest.param({"windows": {}}, "windows", id="not honoured: Windows"),
        pytest.param({"annotations": {"a": "b"}}, "annotations", id="not honoured: annotations"),
    ],
)
async def test_updates_that_cannot_be(cri: CRI, fields: dict[str, Any], mentions: str) -> None:
    async with container(cri) as container_id:
        request = api.UpdateContainerResourcesRequest(container_id=container_id, **fields)
        async with refused("INVALID_ARGUMENT", mentions):
            await cri.runtime.UpdateContainerResources(request)


async def test_a_limit_that_the_kernel_has_not_fails_the_start(cri: CRI) -> None:
    sandbox = sandbox_config()
    huge = resources(hugepage_limits=[api.HugepageLimit(page_size="3MB", limit=1)])
    async with pod(cri, sandbox) as sandbox_id:
        container_id = await create(cri, sandbox_id, huge, sandbox)
        async with refused("FAILED_PRECONDITION", "hugetlb"):
            await cri.runtime.StartContainer(api.StartContainerRequest(container_id=container_id))
        assert (await status(cri, container_id)).state == api.CONTAINER_EXITED


@pytest.mark.every_engine
@pytest.mark.parametrize("cidr", ["10.0.0.0/99", "nonsense"])
async def test_a_pod_cidr_that_is_none(cri: CRI, cidr: str) -> None:
    config = api.RuntimeConfig(network_config=api.NetworkConfig(pod_cidr=cidr))
    async with refused("INVALID_ARGUMENT", "pod_cidr"):
        await cri.runtime.UpdateRuntimeConfig(api.UpdateRuntimeConfigRequest(runtime_config=config))


# A broken node


async def test_an_engine_that_is_down_is_unavailable_until_it_is_back(cri: CRI, engine: Engine) -> None:
    async with pod(cri) as sandbox_id:
        engine.stop()
        for call in (
            run_pod(cri, sandbox_config()),
            sandboxes(cri),
            containers(cri),
            sandbox_status(cri, sandbox_id),
            create(cri, sandbox_id, container_config()),
            remove_pod(cri, sandbox_id),
        ):
            begun = time.monotonic()
            async with refused("UNAVAILABLE", "/docker.sock"):
                await call
            assert time.monotonic() - begun < 3
        response = await cri.runtime.Status(api.StatusRequest())
        ready = next(one for one in response.status.conditions if one.type == "RuntimeReady")
        assert not ready.status
        assert "docker.sock" in ready.message
        engine.start()
        async with container(cri):
            pass


@pytest.fixture(scope="class")
def bad_plugin(server: Server) -> Iterator[Callable[[str], None]]:
    """`bad_plugin(script)`: the chain ends with a plugin that is this shell script. For all the tests of a class."""
    plugin, config_file = Path("/opt/cni/bin/bad"), Path("/etc/cni/net.d/00-bad.conflist")

    def make(script: str) -> None:
        version = """echo '{"cniVersion": "0.4.0", "supportedVersions": ["0.4.0"]}'"""
        plugin.write_text(f"#!/bin/sh\n[ $CNI_COMMAND != VERSION ] || exec {version}\n{script}\n")
        plugin.chmod(0o755)

    make("exit 0")
    config = json.loads(Path("/etc/cni/net.d/10-test.conflist").read_text())
    config["plugins"].append({"type": "bad"})
    config_file.write_text(json.dumps(config))
    networks.read_by(server)
    yield make
    config_file.unlink()
    plugin.unlink()
    networks.read_by(server)


FAILS_TO_ADD = """\
[ "$CNI_COMMAND" = ADD ] || exit 0
echo '{"cniVersion": "0.4.0", "code": 42, "msg": "no more addresses", "details": "of this kind"}'; exit 1"""


PASSES_ON = """\
[ "$CNI_COMMAND" = ADD ] || exit 0
python3 -c 'import json, sys; print(json.dumps(json.load(sys.stdin)["prevResult"]))'"""


class TestPluginsThatFail:
    @pytest.mark.parametrize(
        ("script", "mentions"),
        [
            pytest.param(FAILS_TO_ADD, "no more addresses", id="an error of its own"),
            pytest.param('[ "$CNI_COMMAND" = ADD ] || exit 0; echo broken >&2; exit 1', "broken", id="words on stderr"),
            pytest.param('[ "$CNI_COMMAND" = ADD ] || exit 0; echo garbage', "bad", id="garbage"),
            pytest.param('[ "$CNI_COMMAND" = ADD ] || exit 0; kill -9 $$', "bad", id="killed"),
        ],
    )
    async def test_to_add(self, cri: CRI, bad_plugin: Callable[[str], None], script: str, mentions: str) -> None:
        bad_plugin(script)
        async with refused("INTERNAL", mentions):
            await run_pod(cri, sandbox_config(port_mappings=[api.PortMapping(container_port=80, host_port=18083)]))
        assert await sandboxes(cri) == {}

    async def test_a_plugin_that_hangs_is_ended(
        self, start_server: Callable[..., Server], bad_plugin: Callable[[str], None]
    ) -> None:
        bad_plugin('[ "$CNI_COMMAND" = ADD ] || exit 0; sleep 1234')
        async with CRI(start_server("--cni-timeout=1s").target) as cri:
            begun = time.monotonic()
            async with refused("INTERNAL", "bad"):
                await run_pod(cri, sandbox_config())
            assert time.monotonic() - begun < 6
            assert await sandboxes(cri) == {}
        assert "1234" not in subprocess.run(["ps", "ax"], capture_output=True, text=True, check=True).stdout

    async def test_to_delete_keeps_what_the_next_try_needs(self, cri: CRI, bad_plugin: Callable[[str], None]) -> None:
        bad_plugin(PASSES_ON)
        sandbox_id = await run_pod(cri, sandbox_config())
        bad_plugin("echo not today >&2; exit 1")
        for call in (cri.runtime.StopPodSandbox, cri.runtime.RemovePodSandbox):
            kind = api.StopPodSandboxRequest if call is cri.runtime.StopPodSandbox else api.RemovePodSandboxRequest
            async with refused("INTERNAL", "not today"):
                await call(kind(pod_sandbox_id=sandbox_id))
        assert (await sandboxes(cri))[sandbox_id].state == api.SANDBOX_NOTREADY
        bad_plugin("exit 0")
        await remove_pod(cri, sandbox_id)


@pytest.fixture
async def full_disk(start_server: Callable[..., Server]) -> AsyncIterator[CRI]:
    """A server whose checkpoint folder is on a full disk."""
    server = start_server()
    folder = Path(f"/var/lib/{server.name}/sandbox")
    folder.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4k", "none", folder], check=True)
    (folder / ".filler").write_bytes(b"x" * 4096)
    async with CRI(server.target) as cri:
        yield cri
    subprocess.run(["umount", folder], check=True)


async def test_a_full_disk_under_the_checkpoints(full_disk: CRI) -> None:
    async with refused("RESOURCE_EXHAUSTED", "checkpoint", "No space left"):
        await run_pod(full_disk, sandbox_config())
    assert await sandboxes(full_disk) == {}


async def test_a_host_path_that_was_made_goes_with_a_create_that_fails(cri: CRI, tmp_path: Path) -> None:
    made = tmp_path / "a" / "b"
    config = with_mounts(mount(host_path=str(made)))
    config.image.image = "registry.k8s.io/none:1"
    async with pod(cri) as sandbox_id, refused("NOT_FOUND"):
        await create(cri, sandbox_id, config)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.every_engine
async def test_a_port_that_is_taken_fails_the_pod(start_server: Callable[..., Server]) -> None:
    config = sandbox_config(port_mappings=[api.PortMapping(container_port=80, host_port=80)])
    async with CRI(start_server("--network-plugin=docker").target) as cri:
        async with refused("INTERNAL", "address already in use"):
            await run_pod(cri, config)
        assert await sandboxes(cri) == {}
        async with pod(cri, sandbox_config(metadata=config.metadata)) as sandbox_id:
            await start(cri, sandbox_id)
