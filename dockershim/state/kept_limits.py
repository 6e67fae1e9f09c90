"""Limits that updates gave to containers and the engine has no field for; it cannot change the label that has them."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from dockershim.common.own_files import with_own_files

logger = logging.getLogger(__name__)


class KeptLimits:
    """Content by name of cgroup files, for each container in a file of ``folder``. Making one blocks.

    The folder may be emptied by a reboot, which ends all containers.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known = dict(read_kept_limits(folder))

    def of(self, container_id: str) -> Mapping[str, str]:
        """What all updates of the container gave it; empty if they gave nothing of the kind."""
        return self._known.get(container_id, {})

    def ids(self) -> set[str]:
        """The containers that have any."""
        return set(self._known)

    async def keep(self, container_id: str, files: Mapping[str, str]) -> None:
        """Add what an update gives to a container, when those before it are kept.

        If it cannot be written, it is forgotten with this process.
        """
        if not files:
            return
        self._known[container_id] = {**self.of(container_id), **files}
        try:
            await with_own_files(self._write, container_id, self.of(container_id))
        except OSError as error:
            logger.warning("the new limits of container %s will be lost on restart: %s", container_id, error)

    def forget(self, container_id: str) -> None:
        """The container was removed."""
        if self._known.pop(container_id, None) is not None:
            with contextlib.suppress(OSError):
                (self._folder / container_id).unlink()

    def _write(self, container_id: str, files: Mapping[str, str]) -> None:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        temporary = self._folder / f".{container_id}"
        temporary.write_bytes(msgspec.json.encode(files))
        temporary.replace(self._folder / container_id)


def read_kept_limits(folder: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """The limits in the files of a folder, by container. Removes what is no such file."""
    for path in folder.iterdir() if folder.is_dir() else ():
        try:
            # A name with a dot is that of a write that was cut short.
            if not path.name.startswith("."):
                yield path.name, msgspec.json.decode(path.read_bytes(), type=dict[str, str])
                continue
        except (OSError, ValueError) as error:
            logger.warning("removing the invalid file of limits %s: %s", path, error)
        with contextlib.suppress(OSError):
            path.unlink()
