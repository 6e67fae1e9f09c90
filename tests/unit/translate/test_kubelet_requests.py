"""A kubelet's ordinary requests are never refused, and become exactly this JSON."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dockershim.api.cri.v1 import api_pb2 as cri
from dockershim.errors import InvalidArgument
from tests.unit.translate.engine_bodies import split_extra, to_engine, to_infra
from tests.unit.translate.kubelet import (
    CGROUP_PARENT,
    ENGINE_20,
    ENGINE_28,
    IMAGE_ID,
    LOG_DIRECTORY,
    MASKED_PATHS,
    READONLY_PATHS,
    SANDBOX_ID,
    UID,
    container_config,
    namespaces,
    sandbox_config,
)


def test_a_sandbox_in_full() -> None:
    body = to_infra(sandbox_config(), ENGINE_28)

    assert split_extra(body) == {
        "v": 2,
        "cgroupParent": CGROUP_PARENT,
        "logDirectory": LOG_DIRECTORY,
        "pid": "CONTAINER",
        "overhead": {},
        "resources": {
            "cpu_period": "100000",
            "cpu_quota": "50000",
            "cpu_shares": "256",
            "memory_limit_in_bytes": "134217728",
        },
        "keys": [
            "annotation.kubernetes.io/config.seen",
            "annotation.kubernetes.io/config.source",
            "app",
            "io.kubernetes.pod.name",
            "io.kubernetes.pod.namespace",
            "io.kubernetes.pod.uid",
        ],
    }
    assert body == {
        "Image": "infra:1",
        "Hostname": "web-0",
        "User": "",
        "Labels": {
            "app": "web",
            "io.kubernetes.pod.name": "web-0",
            "io.kubernetes.pod.namespace": "default",
            "io.kubernetes.pod.uid": UID,
            "annotation.kubernetes.io/config.seen": "2026-01-02T03:04:05.678901234Z",
            "annotation.kubernetes.io/config.source": "api",
            "io.kubernetes.docker.type": "podsandbox",
            "io.kubernetes.container.name": "POD",
        },
        "HostConfig": {
            "NetworkMode": "none",
            "IpcMode": "shareable",
            "PidMode": "",
            "UTSMode": "",
            "CgroupParent": "kubepods-burstable-podc3f2a1d0.slice",
            "Sysctls": {"net.ipv4.ip_unprivileged_port_start": "0"},
            "CpuShares": 2,
            "OomScoreAdj": -998,
            "ShmSize": 67108864,
            "ReadonlyRootfs": False,
            "GroupAdd": ["2000"],
            "SecurityOpt": ["no-new-privileges"],
            "RestartPolicy": {"Name": "no"},
            "LogConfig": {"Type": "none"},
        },
    }


def test_a_container_in_full() -> None:
    body = to_engine(container_config(), ENGINE_28)

    assert split_extra(body) == {
        "image": "nginx:1.27",
        "v": 2,
        "cgroupParent": CGROUP_PARENT,
        "envs": 2,
        "cgroupFiles": {
            "hugetlb.2MB.max": "0",
            "hugetlb.1GB.max": "0",
            "memory.min": "0",
            "memory.low": "0",
            "memory.oom.group": "1",
            "memory.swap.max": "0",
        },
        "keys": sorted((*container_config().labels, *(f"annotation.{key}" for key in container_config().annotations))),
    }
    pod_files = f"/var/lib/kubelet/pods/{UID}"
    assert body == {
        "Image": IMAGE_ID,
        "Entrypoint": ["/docker-entrypoint.sh"],
        "Cmd": ["nginx", "-g", "daemon off;"],
        "User": "0",
        "Env": ["KUBERNETES_SERVICE_HOST=10.96.0.1", "EMPTY="],
        "WorkingDir": "/srv",
        "OpenStdin": False,
        "StdinOnce": False,
        "Tty": False,
        "StopSignal": "",
        "Healthcheck": {"Test": ["NONE"]},
        "Labels": {
            "io.kubernetes.container.name": "nginx",
            "io.kubernetes.pod.name": "web-0",
            "io.kubernetes.pod.namespace": "default",
            "io.kubernetes.pod.uid": UID,
            "annotation.io.kubernetes.container.hash": "30b1d5f5",
            "annotation.io.kubernetes.container.restartCount": "1",
            "annotation.io.kubernetes.container.terminationMessagePath": "/dev/termination-log",
            "annotation.io.kubernetes.container.terminationMessagePolicy": "File",
            "annotation.io.kubernetes.pod.terminationGracePeriod": "30",
            "io.kubernetes.docker.type": "container",
            "io.kubernetes.sandbox.id": SANDBOX_ID,
            "io.kubernetes.container.logpath": f"{LOG_DIRECTORY}/nginx/1.log",
        },
        "HostConfig": {
            "NetworkMode": f"container:{SANDBOX_ID}",
            "IpcMode": f"container:{SANDBOX_ID}",
            "PidMode": "",
            "UTSMode": "",
            "CpuPeriod": 100000,
            "CpuQuota": 50000,
            "CpuShares": 256,
            "Memory": 134217728,
            "MemorySwap": 134217728,
            "OomScoreAdj": 996,
            "CgroupParent": "kubepods-burstable-podc3f2a1d0.slice",
            "Mounts": [
                {
                    "Type": "bind",
                    "Source": f"{pod_files}/volumes/kubernetes.io~projected/kube-api-access-x",
                    "Target": "/var/run/secrets/kubernetes.io/serviceaccount",
                    "ReadOnly": True,
                    "BindOptions": {"Propagation": "rprivate", "ReadOnlyNonRecursive": True},
                },
                {
                    "Type": "bind",
                    "Source": f"{pod_files}/etc-hosts",
                    "Target": "/etc/hosts",
                    "ReadOnly": False,
                    "BindOptions": {"Propagation": "rprivate"},
                },
                {
                    "Type": "bind",
                    "Source": f"{pod_files}/containers/nginx/1a2b3c4d",
                    "Target": "/dev/termination-log",
                    "ReadOnly": False,
                    "BindOptions": {"Propagation": "rprivate"},
                },
            ],
            "Binds": [],
            "Sysctls": {},
            "Devices": [],
            "DeviceRequests": [],
            "Privileged": False,
            "CapAdd": [],
            "CapDrop": [],
            "GroupAdd": ["2000"],
            "ReadonlyRootfs": False,
            "SecurityOpt": [],
            "RestartPolicy": {"Name": "no"},
            "LogConfig": {"Type": "json-file"},
            "MaskedPaths": MASKED_PATHS,
            "ReadonlyPaths": READONLY_PATHS,
        },
    }


def test_a_sandbox_of_the_nodes_network_and_namespaces() -> None:
    config = sandbox_config()
    config.hostname = ""
    config.dns_config.Clear()
    config.linux.sysctls.clear()
    config.linux.security_context.namespace_options.CopyFrom(namespaces(network=cri.NODE, pid=cri.NODE, ipc=cri.NODE))

    body = to_infra(config, ENGINE_28, network_mode="host")

    assert "Hostname" not in body
    modes = {key: body["HostConfig"][key] for key in ("NetworkMode", "IpcMode", "PidMode", "UTSMode")}
    assert modes == {"NetworkMode": "host", "IpcMode": "host", "PidMode": "host", "UTSMode": "host"}


def test_sysctls_of_the_hostname_are_each_containers() -> None:
    """The engine gives each container a UTS namespace of its own; the other namespaces are the pod's."""
    config = sandbox_config()
    config.linux.sysctls["kernel/domainname"] = "tests.example"

    assert to_infra(config, ENGINE_28)["HostConfig"]["Sysctls"] == dict(config.linux.sysctls)
    container = to_engine(container_config(), ENGINE_28, sandbox=config)
    assert container["HostConfig"]["Sysctls"] == {"kernel/domainname": "tests.example"}


def test_the_engine_publishes_ports_where_no_plugin_does() -> None:
    body = to_infra(sandbox_config(), ENGINE_28, network_mode="default", publish_ports=True)

    assert body["ExposedPorts"] == {"80/tcp": {}}
    assert body["HostConfig"]["PortBindings"] == {"80/tcp": [{"HostIp": "", "HostPort": "8080"}]}


def test_a_runtime_class_is_an_engines_runtime_and_is_read_back() -> None:
    sandbox = to_infra(sandbox_config(), ENGINE_28, runtime_handler="kata")
    container = to_engine(container_config(), ENGINE_28, runtime="kata")

    assert sandbox["HostConfig"]["Runtime"] == container["HostConfig"]["Runtime"] == "kata"
    assert split_extra(sandbox)["runtimeHandler"] == "kata"


def test_an_engine_of_the_oldest_version_gets_nothing_that_it_does_not_know() -> None:
    config = container_config()
    config.linux.resources.unified.clear()
    config.linux.resources.memory_swap_limit_in_bytes = config.linux.resources.memory_limit_in_bytes

    body = to_engine(config, ENGINE_20)

    assert body["HostConfig"]["CgroupParent"] == CGROUP_PARENT
    assert body["HostConfig"]["Mounts"][0]["BindOptions"] == {"Propagation": "rprivate"}
    assert split_extra(body)["cgroupFiles"] == {"hugetlb.2MB.limit_in_bytes": "0", "hugetlb.1GB.limit_in_bytes": "0"}


def test_a_privileged_container_keeps_its_proc_unmasked() -> None:
    config, sandbox = container_config(), sandbox_config()
    config.linux.security_context.privileged = True
    sandbox.linux.security_context.privileged = True

    host_config = to_engine(config, ENGINE_28, sandbox=sandbox)["HostConfig"]

    assert host_config["Privileged"] is True
    assert not {"MaskedPaths", "ReadonlyPaths"} & set(host_config)


def test_an_unmasked_proc_is_asked_for_with_empty_lists() -> None:
    config = container_config()
    config.linux.security_context.ClearField("masked_paths")
    config.linux.security_context.ClearField("readonly_paths")

    host_config = to_engine(config, ENGINE_28)["HostConfig"]

    assert (host_config["MaskedPaths"], host_config["ReadonlyPaths"]) == ([], [])


def test_without_a_security_context_the_engines_own_masks_hold() -> None:
    config = container_config()
    config.linux.ClearField("security_context")

    assert "MaskedPaths" not in to_engine(config, ENGINE_28)["HostConfig"]


@pytest.mark.parametrize(
    ("command", "args", "expected"),
    [
        pytest.param([], [], {}, id="neither: the image's entry point and command"),
        pytest.param(["a"], [], {"Entrypoint": ["a"]}, id="a command: the engine drops the image's command with it"),
        pytest.param([], ["b"], {"Cmd": ["b"]}, id="arguments: the image's entry point stays"),
    ],
)
def test_command_and_args(command: list[str], args: list[str], expected: dict[str, list[str]]) -> None:
    config = container_config()
    config.ClearField("command")
    config.ClearField("args")
    config.command.extend(command)
    config.args.extend(args)

    body = to_engine(config, ENGINE_28)

    assert {key: body[key] for key in ("Entrypoint", "Cmd") if key in body} == expected


def test_scores_below_what_the_engine_may_set_are_raised_to_it() -> None:
    config = container_config()
    config.linux.resources.oom_score_adj = -997

    assert to_engine(config, ENGINE_28, lowest_oom_score=0)["HostConfig"]["OomScoreAdj"] == 0
    assert to_infra(sandbox_config(), ENGINE_28, lowest_oom_score=-500)["HostConfig"]["OomScoreAdj"] == -500


def test_a_sandbox_for_another_cgroup_driver_than_the_engines_is_refused() -> None:
    with pytest.raises(InvalidArgument, match=r"^config\.linux\.cgroup_parent: .* is of the systemd driver"):
        to_infra(sandbox_config(), replace(ENGINE_28, cgroup_driver="cgroupfs"))


def test_the_smallest_request_of_another_client_is_taken() -> None:
    sandbox = cri.PodSandboxConfig(metadata=cri.PodSandboxMetadata(name="p", namespace="n", uid="u"))
    container = cri.ContainerConfig(metadata=cri.ContainerMetadata(name="c"), image=cri.ImageSpec(image="busybox"))
    without_systemd = replace(ENGINE_28, cgroup_driver="cgroupfs")

    assert to_infra(sandbox, without_systemd)["HostConfig"]["CgroupParent"] == ""
    assert to_engine(container, without_systemd, sandbox=sandbox)["Env"] == []
