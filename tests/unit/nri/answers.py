"""Requests to plugins, and their answers."""

from __future__ import annotations

from typing import Any

from dockershim.api.nri.v1alpha1 import api_pb2 as api

ID = "1c" * 32
A, B, C = "10-a", "20-b", "30-c"


def request() -> api.CreateContainerRequest:
    container = api.Container(
        id=ID,
        name="main",
        annotations={"there": "1"},
        args=["serve"],
        env=["PATH=/bin", "THERE=1", "BARE"],
        mounts=[api.Mount(destination="/there", source="/srv", type="bind")],
        linux=api.LinuxContainer(
            devices=[api.LinuxDevice(path="/dev/there", type="c", major=1, minor=3)],
            sysctl={"net.there": "1"},
            namespaces=[api.LinuxNamespace(type="pid"), api.LinuxNamespace(type="ipc", path="/proc/1/ns/ipc")],
            net_devices={"there": api.LinuxNetDevice(name="eth1")},
        ),
        rlimits=[api.POSIXRlimit(type="RLIMIT_CORE", hard=1, soft=1)],
    )
    return api.CreateContainerRequest(pod=api.PodSandbox(id="pod"), container=container)


def answer(**adjust: Any) -> api.CreateContainerResponse:
    return api.CreateContainerResponse(adjust=api.ContainerAdjustment(**adjust))


def linux(**fields: Any) -> api.CreateContainerResponse:
    return answer(linux=api.LinuxContainerAdjustment(**fields))


def limits(**fields: Any) -> api.CreateContainerResponse:
    return linux(resources=api.LinuxResources(**fields))


def device(path: str, minor: int = 3) -> api.LinuxDevice:
    return api.LinuxDevice(path=path, type="c", major=1, minor=minor)


#: Each field that one plugin sets at a time: an answer that sets it, and what it is called.
FIELDS = [
    (answer(annotations={"k": "v"}), "Annotations k"),
    (answer(mounts=[api.Mount(destination="/m", source="/s", type="bind")]), "Mounts /m"),
    (answer(env=[api.KeyValue(key="K", value="v")]), "Env K"),
    (answer(args=["a", "b"]), "Args"),
    (answer(rlimits=[api.POSIXRlimit(type="RLIMIT_NOFILE", hard=2, soft=1)]), "Rlimits RLIMIT_NOFILE"),
    (answer(CDI_devices=[api.CDIDevice(name="vendor.com/gpu=0")]), "CdiDevices vendor.com/gpu=0"),
    (linux(devices=[device("/dev/x")]), "Devices /dev/x"),
    (linux(cgroups_path="/pods/x"), "CgroupsPath"),
    (linux(oom_score_adj=api.OptionalInt(value=0)), "OomScoreAdj"),
    (linux(io_priority=api.LinuxIOPriority(priority=1)), "IoPriority"),
    (linux(seccomp_policy=api.LinuxSeccomp(default_action="SCMP_ACT_ALLOW")), "SeccompPolicy"),
    (linux(namespaces=[api.LinuxNamespace(type="uts")]), "Namespace uts"),
    (linux(sysctl={"net.x": "1"}), "Sysctl net.x"),
    (linux(net_devices={"eth1": api.LinuxNetDevice(name="x")}), "LinuxNetDevices eth1"),
    (linux(scheduler=api.LinuxScheduler(nice=1)), "LinuxSched"),
    (linux(rdt=api.LinuxRdt(clos_id=api.OptionalString(value="x"))), "RdtClosID"),
    (linux(rdt=api.LinuxRdt(schemata=api.OptionalRepeatedString(value=["x"]))), "RdtSchemata"),
    (linux(rdt=api.LinuxRdt(enable_monitoring=api.OptionalBool(value=False))), "RdtEnableMonitoring"),
    (linux(memory_policy=api.LinuxMemoryPolicy(nodes="0")), "MemoryPolicy"),
    (limits(memory=api.LinuxMemory(limit=api.OptionalInt64(value=0))), "MemLimit"),
    (limits(memory=api.LinuxMemory(reservation=api.OptionalInt64(value=1))), "MemReservation"),
    (limits(memory=api.LinuxMemory(swap=api.OptionalInt64(value=1))), "MemSwapLimit"),
    (limits(memory=api.LinuxMemory(kernel=api.OptionalInt64(value=1))), "MemKernelLimit"),
    (limits(memory=api.LinuxMemory(kernel_tcp=api.OptionalInt64(value=1))), "MemTCPLimit"),
    (limits(memory=api.LinuxMemory(swappiness=api.OptionalUInt64(value=0))), "MemSwappiness"),
    (limits(memory=api.LinuxMemory(disable_oom_killer=api.OptionalBool(value=False))), "MemDisableOomKiller"),
    (limits(memory=api.LinuxMemory(use_hierarchy=api.OptionalBool(value=True))), "MemUseHierarchy"),
    (limits(cpu=api.LinuxCPU(shares=api.OptionalUInt64(value=2))), "CPUShares"),
    (limits(cpu=api.LinuxCPU(quota=api.OptionalInt64(value=-1))), "CPUQuota"),
    (limits(cpu=api.LinuxCPU(period=api.OptionalUInt64(value=1000))), "CPUPeriod"),
    (limits(cpu=api.LinuxCPU(realtime_runtime=api.OptionalInt64(value=1))), "CPURealtimeRuntime"),
    (limits(cpu=api.LinuxCPU(realtime_period=api.OptionalUInt64(value=1))), "CPURealtimePeriod"),
    (limits(cpu=api.LinuxCPU(cpus="0")), "CPUSetCPUs"),
    (limits(cpu=api.LinuxCPU(mems="0")), "CPUSetMems"),
    (limits(pids=api.LinuxPids(limit=5)), "PidsLimit"),
    (limits(hugepage_limits=[api.HugepageLimit(page_size="2MB", limit=1)]), "HugepageLimits 2MB"),
    (limits(blockio_class=api.OptionalString(value="x")), "BlockioClass"),
    (limits(rdt_class=api.OptionalString(value="x")), "RdtClass"),
    (limits(unified={"memory.high": "1"}), "CgroupsUnified memory.high"),
]


def env(**values: str) -> api.CreateContainerResponse:
    return answer(env=[api.KeyValue(key=key, value=value) for key, value in values.items()])


def mount(destination: str = "/m", source: str = "/s", kind: str = "bind", options: Any = ()) -> Any:
    return answer(mounts=[api.Mount(destination=destination, source=source, type=kind, options=options)])


def memory(**numbers: int) -> api.CreateContainerResponse:
    fields: dict[str, Any] = {name: api.OptionalInt64(value=number) for name, number in numbers.items()}
    return limits(memory=api.LinuxMemory(**fields))


def quota(number: int) -> api.CreateContainerResponse:
    return limits(cpu=api.LinuxCPU(quota=api.OptionalInt64(value=number)))


POLICY = api.LinuxSeccomp(
    default_action="SCMP_ACT_ERRNO",
    default_errno=api.OptionalUInt32(value=38),
    architectures=["SCMP_ARCH_X86_64"],
    flags=["SECCOMP_FILTER_FLAG_LOG"],
    listener_path="/run/x",
    listener_metadata="y",
    syscalls=[
        api.LinuxSyscall(
            names=["mkdir"],
            action="SCMP_ACT_ERRNO",
            errno_ret=api.OptionalUInt32(value=1),
            args=[api.LinuxSeccompArg(index=1, value=2, value_two=3, op="SCMP_CMP_EQ")],
        )
    ],
)
#: An answer for each row, with values of wrappers that are not their default.
EXAMPLES: dict[str, api.CreateContainerResponse] = {
    "annotations": answer(annotations={"k": "v"}),
    "mounts": mount(),
    "env": env(K="v"),
    "hooks": answer(hooks=api.Hooks(prestart=[api.Hook(path="/x")])),
    "args": answer(args=["x"]),
    "rlimits": answer(rlimits=[api.POSIXRlimit(type="RLIMIT_NOFILE", hard=2, soft=1)]),
    "CDI_devices": answer(CDI_devices=[api.CDIDevice(name="vendor.com/gpu=0")]),
    "linux.devices": linux(devices=[device("/dev/x")]),
    "linux.resources.memory.limit": memory(limit=64 << 20),
    "linux.resources.memory.reservation": memory(reservation=32 << 20),
    "linux.resources.memory.swap": memory(swap=256 << 20),
    "linux.resources.memory.kernel": memory(kernel=1),
    "linux.resources.memory.kernel_tcp": memory(kernel_tcp=1),
    "linux.resources.memory.swappiness": limits(memory=api.LinuxMemory(swappiness=api.OptionalUInt64(value=0))),
    "linux.resources.memory.disable_oom_killer": limits(
        memory=api.LinuxMemory(disable_oom_killer=api.OptionalBool(value=True))
    ),
    "linux.resources.memory.use_hierarchy": limits(memory=api.LinuxMemory(use_hierarchy=api.OptionalBool(value=True))),
    "linux.resources.cpu.shares": limits(cpu=api.LinuxCPU(shares=api.OptionalUInt64(value=7))),
    "linux.resources.cpu.quota": quota(7000),
    "linux.resources.cpu.period": limits(cpu=api.LinuxCPU(period=api.OptionalUInt64(value=7000))),
    "linux.resources.cpu.realtime_runtime": limits(cpu=api.LinuxCPU(realtime_runtime=api.OptionalInt64(value=7))),
    "linux.resources.cpu.realtime_period": limits(cpu=api.LinuxCPU(realtime_period=api.OptionalUInt64(value=7))),
    "linux.resources.cpu.cpus": limits(cpu=api.LinuxCPU(cpus="0")),
    "linux.resources.cpu.mems": limits(cpu=api.LinuxCPU(mems="0")),
    "linux.resources.hugepage_limits": limits(hugepage_limits=[api.HugepageLimit(page_size="2MB", limit=1)]),
    "linux.resources.blockio_class": limits(blockio_class=api.OptionalString(value="x")),
    "linux.resources.rdt_class": limits(rdt_class=api.OptionalString(value="x")),
    "linux.resources.unified": limits(unified={"memory.high": "1"}),
    "linux.resources.devices": limits(devices=[api.LinuxDeviceCgroup(allow=True, type="c", access="r")]),
    "linux.resources.pids": limits(pids=api.LinuxPids(limit=5)),
    "linux.cgroups_path": linux(cgroups_path="other.slice:docker:x"),
    "linux.oom_score_adj": linux(oom_score_adj=api.OptionalInt(value=7)),
    "linux.io_priority": linux(io_priority=api.LinuxIOPriority(**{"class": api.IOPRIO_CLASS_BE}, priority=1)),
    "linux.seccomp_policy": linux(seccomp_policy=POLICY),
    "linux.namespaces": linux(namespaces=[api.LinuxNamespace(type="pid"), api.LinuxNamespace(type="-ipc")]),
    "linux.sysctl": linux(sysctl={"net.ipv4.ip_forward": "1"}),
    "linux.net_devices": linux(net_devices={"eth1": api.LinuxNetDevice(name="x")}),
    "linux.scheduler": linux(scheduler=api.LinuxScheduler(policy=api.SCHED_BATCH, nice=1)),
    "linux.rdt": linux(rdt=api.LinuxRdt(schemata=api.OptionalRepeatedString(value=["x"]))),
    "linux.memory_policy": linux(memory_policy=api.LinuxMemoryPolicy()),
}
