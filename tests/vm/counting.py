"""Pods with a container that writes numbered lines: what is missing of them shows."""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from typing import Final

from dockershim.api.cri.v1 import api_pb2 as api
from tests.cri_client import CRI
from tests.engine import pods
from tests.vm.cgroups import burstable
from tests.vm.guest import Guest
from tests.waiting import until

COUNTING: Final = "i=0; while :; do i=$((i+1)); echo line $i; sleep 0.2; done"

_numbers: Final = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Running:
    """A burstable pod with such a container."""

    config: api.PodSandboxConfig
    sandbox: str
    container: str

    @property
    def log(self) -> str:
        return f"{self.config.log_directory}/main.log"

    def lines(self, guest: Guest) -> list[int]:
        """The numbers in its log."""
        return [int(number) for number in re.findall(r" F line (\d+)$", guest.read(self.log), flags=re.MULTILINE)]

    async def goes_on(self, guest: Guest, timeout: float = 60.0) -> None:
        """Wait for a line that is not there yet."""
        last = self.lines(guest)[-1]
        await until(lambda: self.lines(guest)[-1] > last, timeout=timeout)


async def run(cri: CRI, name: str) -> Running:
    """Start one in a pod whose name begins so."""
    config = burstable(f"{name}-{next(_numbers)}")
    sandbox = await pods.run_pod(cri, config)
    return Running(config, sandbox, await pods.start(cri, sandbox, pods.container_config(COUNTING), config))


def is_whole(numbers: list[int]) -> bool:
    """Whether no line is missing, and none is there twice."""
    return numbers == list(range(1, len(numbers) + 1)) and bool(numbers)
