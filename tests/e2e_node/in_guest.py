"""The suite in a guest, as upstream runs it: with systemd, which runs the kubelet, cgroup v2 and AppArmor."""

from __future__ import annotations

import contextlib
import json
import shlex
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.conformance import tools as cri_tools
from tests.e2e_node import suite
from tests.kubernetes import suite_images
from tests.kubernetes.ginkgo import Suite
from tests.kubernetes.programs import Release
from tests.node.cache import say
from tests.node.packages import SetupError
from tests.vm import daemon, image, user_namespaces
from tests.vm.guest import CRI_SOCKET, Guest, GuestError
from tests.vm.machines import Machine
from tests.vm.running import running

#: Seconds for all specs that are asked for. A guest has one processor.
TIME_LIMIT: Final = 6 * 3600
DRIVERS: Final = ("systemd", "cgroupfs")
_PROGRAMS: Final = "usr/local/bin"
# In the guest, on its disk: /tmp is in memory.
_REPORT: Final = Path("/var/log/e2e-node")
_CONFIGURATION: Final = "/root/kubelet.json"
# Apart from the driver these are the defaults of kubelet and suite.
_KUBELET: Final[Mapping[str, Any]] = {
    **suite.KUBELET,
    "evictionHard": {"memory.available": "250Mi", "nodefs.available": "10%", "nodefs.inodesFree": "5%"},
    "evictionMinimumReclaim": {"nodefs.available": "5%", "nodefs.inodesFree": "5%"},
}
# What specs stop, start and look for, and whose cgroup the kubelet reports on.
_ENGINE: Final = (
    "--container-runtime-process-name=dockerd",
    "--container-runtime-pid-file=",
    "--kubelet-flags=--runtime-cgroups=/system.slice/docker.service",
)
_UNITS: Final = ("dockershim", "docker")
# A pod has to run within a minute, in which a busy guest does not pull the first of these. (The suite's own option also
# pulls images that no registry here has.)
_PULLED: Final = tuple(
    f"registry.k8s.io/{name}"
    for made in suite_images.IMAGES
    for name in made.names
    if name.startswith((f"{suite_images.SUITE}/agnhost:", f"{suite_images.SUITE}/busybox:"))
)
_SWAP_ON: Final = "fallocate --length=1G /swap && chmod 600 /swap && mkswap /swap && swapon /swap"


@dataclass(frozen=True, slots=True)
class Node:
    """The guest that the suite runs in: what runs it, an engine of tests.vm.image, its cgroup driver, a GiB of swap."""

    machine: Machine
    engine: str
    driver: str = "systemd"
    swap: bool = False

    def run(self, release: Release, options: Sequence[str], gates: str, report: Path) -> int:
        """Run the suite with ginkgo's ``options``, and put all reports into a folder.

        ``gates`` are the kubelet's. Gives ginkgo's exit code; SetupError if there is no guest.
        """
        try:
            with self._running(release) as guest:
                return self._run(guest, options, gates, report)
        except GuestError as error:
            raise SetupError(str(error)) from error

    @contextlib.contextmanager
    def _running(self, release: Release) -> Iterator[Guest]:
        kind = image.Kind(
            registries=(suite_images.provide(release),),
            programs={
                **{f"{_PROGRAMS}/{name}": release.provide(name) for name in ("e2e_node.test", "ginkgo", "kubelet")},
                f"{_PROGRAMS}/crictl": cri_tools.provide() / "crictl",
            },
        )
        driver = {"exec-opts": [f"native.cgroupdriver={self.driver}"]}
        runtimes = {suite.RUNTIME: {"path": "runc"}}
        with running(self.machine, image.provided(kind, self.engine)) as guest, daemon.changed(guest, driver):
            # It takes another driver when it starts.
            guest.run("systemctl", "restart", "docker")
            with user_namespaces.registered(guest, runtimes):
                if self.swap:
                    guest.sh(_SWAP_ON)
                yield guest

    def _run(self, guest: Guest, options: Sequence[str], gates: str, report: Path) -> int:
        programs = Path("/", _PROGRAMS)
        program = programs / "e2e_node.test"
        arguments = (*suite.arguments(f"unix://{CRI_SOCKET}", _CONFIGURATION, gates), *_ENGINE)
        # It looks for the kubelet beside itself.
        command = Suite(programs / "ginkgo", program, _REPORT, TIME_LIMIT).command(program, options, arguments)
        log = _REPORT / f"{program.stem}.log"
        kubelet = {**_KUBELET, "cgroupDriver": self.driver, "failSwapOn": not self.swap}
        guest.sh(f"mkdir {_REPORT} && cat >{_CONFIGURATION}", input=json.dumps(kubelet))
        for name in _PULLED:
            guest.run("crictl", "pull", name, timeout=600)
        say(f"the suite's own log: {guest.entrance} tail -f {log}")
        try:
            return guest.ended(f"{shlex.join(command)} >{log} 2>&1", timeout=TIME_LIMIT + 600).code
        finally:
            with contextlib.suppress(GuestError):
                _fetch(guest, report)


def _fetch(guest: Guest, report: Path) -> None:
    """Put the suite's reports and the journals of units into a folder."""
    archive = report / "report.tar"
    guest.sh(f"tar --create --file=/root/{archive.name} --directory={_REPORT} .", timeout=300)
    guest.fetch(f"/root/{archive.name}", archive)
    with tarfile.open(archive) as content:
        content.extractall(report, filter="data")
    archive.unlink()
    for unit in _UNITS:
        (report / f"{unit}.log").write_text(guest.journal(unit, check=False))
