"""The kernel of the guests that are User Mode Linux: Debian's sources, one line more, and the options of uml.config.

Some ten minutes of two cores make it, once for each version of the sources and content of that file. Debian's own
user-mode-linux lacks cpusets, pressure stall information and iptables. `python -m tests.vm.kernel` makes and checks it.
"""

from __future__ import annotations

import argparse
import gzip
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from tests.node.cache import REPOSITORY, appearing, entry, locked, used
from tests.node.packages import SetupError, Suite, install, run

FORKY: Final = Suite("forky")
#: It names a release: when Debian has replaced that one, this has to follow.
SOURCE: Final = "linux-source-7.2"
FRAGMENT: Final = Path(__file__).with_name("uml.config")
# What builds it. Nothing of it is linked with: the kernel needs only the C library.
MACHINE: Final = ("bc", "binutils", "bison", "flex", "gcc", "libc6-dev", "make", "perl", "util-linux", "xz-utils")
# It is built in memory: on a disk, to remove 90,000 files again may take minutes. The mount ends with the shell.
_BUILD: Final = f"""\
set -eu
made=$1 sources=$2 fragment=$3 check=$4
mount -t tmpfs -o size=8g sources "$made"/../in-memory
cd "$made"/../in-memory
tar --extract --file="$sources/usr/src/{SOURCE}.tar.xz"
cd {SOURCE}
# A kubelet does not start without a processor's clock speed in /proc/cpuinfo, which User Mode Linux does not print.
sed -i '/^\tseq_printf(m, "bogomips/i seq_puts(m, "cpu MHz\\\\t\\\\t: 2000.000\\\\n");' arch/um/kernel/um_arch.c
grep -q '^seq_puts(m, "cpu MHz' arch/um/kernel/um_arch.c
make ARCH=um defconfig
cat "$fragment" >>.config # of two lines about an option the last one counts
make ARCH=um olddefconfig
$check .config
make ARCH=um --jobs=$(($(nproc) + 1)) linux
cp linux "$made"
"""
# This may have been started by a make, whose options are not for the kernel's.
_OF_MAKE: Final = frozenset({"MAKEFLAGS", "MFLAGS", "MAKELEVEL"})

#: What programs on a node ask of its kernel, apart from what uml.config happens to hold: Docker's check-config.sh,
#: the checks of kubeadm (k8s.io/system-validators), the modes of kube-proxy, and systemd's README.
NEEDED: Final[Mapping[str, str]] = {
    "systemd": "CGROUPS DEVTMPFS EPOLL FHANDLE INOTIFY_USER NET PROC_FS SIGNALFD SYSFS TIMERFD TMPFS_XATTR UNIX",
    "Docker": """
        BRIDGE BRIDGE_NETFILTER CGROUP_BPF CGROUP_DEVICE CGROUP_FREEZER CGROUP_PIDS CGROUP_SCHED CPUSETS
        CFS_BANDWIDTH BLK_CGROUP BLK_DEV_THROTTLING EXT4_FS EXT4_FS_POSIX_ACL EXT4_FS_SECURITY FAIR_GROUP_SCHED
        IP_NF_FILTER IP_NF_MANGLE IP_NF_NAT IP_NF_RAW IP_NF_TARGET_MASQUERADE IP6_NF_FILTER IP6_NF_NAT IPC_NS KEYS
        MEMCG NAMESPACES NETFILTER_XT_MARK NETFILTER_XT_MATCH_ADDRTYPE NETFILTER_XT_MATCH_CONNTRACK
        NETFILTER_XT_MATCH_IPVS NET_NS NF_NAT OVERLAY_FS PID_NS POSIX_MQUEUE SECCOMP SECCOMP_FILTER SECURITY_APPARMOR
        USER_NS UTS_NS VETH VXLAN
        """,
    "kubelet": """
        CGROUPS CGROUP_BPF CGROUP_CPUACCT CGROUP_DEVICE CGROUP_FREEZER CGROUP_PIDS CGROUP_SCHED CFS_BANDWIDTH CPUSETS
        FAIR_GROUP_SCHED INET IPC_NS MEMCG NAMESPACES NETFILTER_XT_MATCH_COMMENT NETFILTER_XT_TARGET_REDIRECT NET_NS
        PID_NS PROC_FS PSI SECCOMP SECCOMP_FILTER SWAP UTS_NS
        """,
    "kube-proxy": """
        IP_SET IP_SET_HASH_IP IP_SET_HASH_IPPORT IP_VS IP_VS_NFCT IP_VS_RR NETFILTER_XT_MATCH_COMMENT
        NETFILTER_XT_MATCH_CONNTRACK NETFILTER_XT_MATCH_MARK NETFILTER_XT_MATCH_NFACCT NETFILTER_XT_MATCH_PHYSDEV
        NETFILTER_XT_MATCH_RECENT NETFILTER_XT_MATCH_STATISTIC NETFILTER_XT_SET NETFILTER_XT_TARGET_MARK
        NETFILTER_XT_TARGET_MASQUERADE NETFILTER_XT_TARGET_REDIRECT NFT_CT NFT_FIB_INET NFT_HASH NFT_LIMIT NFT_MASQ
        NFT_NAT NFT_NUMGEN NFT_REJECT_INET NF_CONNTRACK NF_CT_NETLINK NF_TABLES_INET
        """,
    "CNI plugins": "BRIDGE IFB NET_ACT_MIRRED NET_CLS_U32 NET_SCH_INGRESS NET_SCH_TBF NFT_COMPAT VETH",
}


def provide() -> Path:
    """The program that is the kernel. SetupError if it lacks an option, or cannot be built."""
    with locked("vm-kernel"):
        sources = FORKY.unpack((SOURCE,), entry("linux-source", SOURCE))
        content = f"{_version(sources)}\n{_BUILD}".encode() + FRAGMENT.read_bytes()
        target = entry("vm-kernel", content)
        if not used(target):
            install(MACHINE)
            with appearing(target) as made:
                _build(sources, made)
    kernel = target / "linux"
    _check(run(kernel, "--showconfig"), str(kernel))
    return kernel


def _check(config: str, what: str) -> None:
    if lacking := missing(config, FRAGMENT.read_text()):
        raise SetupError(f"{what} of {SOURCE} lacks {'; '.join(lacking)}")


def _version(sources: Path) -> str:
    """The first line of the package's changelog."""
    [changelog] = sources.glob("usr/share/doc/*/changelog.Debian.gz")
    with gzip.open(changelog, "rt") as text:
        return text.readline().strip()


def _build(sources: Path, made: Path) -> None:
    """Put the program into the folder ``made``."""
    (made.parent / "in-memory").mkdir()
    environment = {name: value for name, value in os.environ.items() if name not in _OF_MAKE}
    environment["PYTHONPATH"] = str(REPOSITORY)
    check = f"{sys.executable} -m tests.vm.kernel --check"
    run("unshare", "--mount", "sh", "-c", _BUILD, "sh", made, sources, FRAGMENT, check, env=environment)


def missing(config: str, fragment: str) -> list[str]:
    """What a kernel's configuration lacks: lines of the fragment, and the options that programs need, by name."""
    lines = set(config.splitlines())
    wanted = [line for line in fragment.splitlines() if "CONFIG_" in line]
    lost = [f"`{line}` of {FRAGMENT.name}" for line in wanted if line not in lines and not _is_unknown(line, config)]
    options = ((program, f"CONFIG_{name}") for program, names in NEEDED.items() for name in names.split())
    return lost + [f"{option}, which {program} needs" for program, option in options if f"{option}=y" not in lines]


def _is_unknown(line: str, config: str) -> bool:
    """Whether a line is about an option that should be off, and that is not there at all."""
    return line.endswith(" is not set") and f"{line.split()[1]}=" not in config


def main(arguments: Sequence[str]) -> int:
    """Make the kernel if it has to be made, and say where it is; or check a configuration, before it is built."""
    parser = argparse.ArgumentParser(prog="python -m tests.vm.kernel", description=__doc__)
    parser.add_argument("--check", type=Path, metavar="FILE", help="check this configuration, and build nothing")
    given = parser.parse_args(arguments)
    began = time.monotonic()
    try:
        if given.check:
            _check(given.check.read_text(), str(given.check))
            return 0
        kernel = provide()
    except SetupError as error:
        sys.exit(f"vm: {error}")
    options = len({name for names in NEEDED.values() for name in names.split()})
    sys.stdout.write(
        f"{kernel}: {run(kernel, '--version').strip()}, {kernel.stat().st_size >> 20} MiB, "
        f"with {options} options that programs need, in {time.monotonic() - began:.0f} s\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
