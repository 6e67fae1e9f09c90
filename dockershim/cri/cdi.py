"""The edits of CDI devices for an engine that has no CDI itself."""

from __future__ import annotations

import logging
from typing import Final

from dockershim.common.steps import step
from dockershim.errors import FailedPrecondition
from dockershim.host_paths.server_side import HostPaths
from dockershim.translate.cdi import FOLDERS, NO_EDITS, Edits, check_host, kind_and_name, to_edits

logger = logging.getLogger(__name__)

#: Files of which we remember what we have told; two folders have fewer.
_MOST_TOLD: Final = 10_000


class CdiSpecs:
    """The node's CDI specifications. They are read for each container that has such a device: so they are never old."""

    def __init__(self, host_paths: HostPaths) -> None:
        self._host_paths = host_paths
        #: What was wrong with files when it was last told, by path.
        self._problems: dict[str, str] = {}

    async def edits(self, names: tuple[str, ...]) -> Edits:
        """The edits of the devices, for which the host has what they need. Raises ShimError."""
        if not names:
            return NO_EDITS
        with step("read the CDI specifications"):
            try:
                files = await self._host_paths.cdi_specs(FOLDERS, [kind_and_name(name) for name in names])
                edits, problems = to_edits(names, files)
                there = await self._host_paths.look_at(edits.host_paths)
            except OSError as error:
                raise FailedPrecondition(f"CDI_devices: {error}") from error
        check_host(edits, there)
        self._tell(problems)
        return edits

    def _tell(self, problems: dict[str, str]) -> None:
        """Log what is wrong with files that no device of the container needed, once for each."""
        if len(self._problems) > _MOST_TOLD:
            self._problems.clear()
        for path, problem in problems.items():
            if self._problems.get(path) != problem:
                self._problems[path] = problem
                logger.warning("CDI specification %r %s; its devices cannot be used", path, problem)
