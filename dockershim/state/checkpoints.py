"""The checkpoints of pods: those on disk, and what is known of them in memory."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from checkpoints import Checkpoint, CheckpointError, Store
from dockershim.common.own_files import with_own_files
from dockershim.common.rollback import run_to_completion
from dockershim.errors import disk_error

logger = logging.getLogger(__name__)


class Checkpoints:
    """The content of ``store``, which nobody else writes while this process holds its lock.

    And of the stores of other dockershims below the ``adopted`` root directories. Blocks on the file system.
    """

    def __init__(self, store: Store, adopted: Iterable[Path] = ()) -> None:
        self._store = store
        self._known: dict[str, Checkpoint] = {}
        #: The other stores that have a file of a sandbox.
        self._others: dict[str, list[Store]] = {}
        for root in adopted:
            other = Store(root / "sandbox", foreign=True)
            found = _load(other)
            logger.info("%d checkpoints adopted from %s", len(found), root)
            for sandbox_id in found:
                self._others.setdefault(sandbox_id, []).append(other)
            self._known |= found
        self._known |= _load(store)

    @property
    def by_id(self) -> Mapping[str, Checkpoint]:
        """Each sandbox's, by its id."""
        return self._known

    def damaged(self) -> int:
        """How many files were set aside as they cannot be read."""
        return self._store.damaged()

    async def write(self, checkpoint: Checkpoint) -> None:
        """Raises ShimError."""
        with _errors("written"):
            await run_to_completion(with_own_files(self._store.write, checkpoint), "write the checkpoint")
        self._known[checkpoint.sandbox_id] = checkpoint

    async def remove(self, sandbox_id: str) -> None:
        """Also another dockershim's file of an adopted sandbox: to that one, a file without containers is a pod.

        Raises ShimError.
        """
        with _errors("removed"):
            for store in (self._store, *self._others.get(sandbox_id, ())):
                await with_own_files(store.remove, sandbox_id)
        self._known.pop(sandbox_id, None)


def _load(store: Store) -> dict[str, Checkpoint]:
    """Nothing about checkpoints keeps the server from serving the pods that the engine has."""
    try:
        loaded, problems = store.load_all()
    except CheckpointError as error:
        logger.error("%s; what the engine has lost is not known", error)
        return {}
    for problem in problems:
        logger.error("checkpoint: %s", problem)
    return {checkpoint.sandbox_id: checkpoint for checkpoint in loaded}


@contextmanager
def _errors(what: str) -> Iterator[None]:
    try:
        yield
    except CheckpointError as error:
        raise disk_error(f"the sandbox's checkpoint cannot be {what}: {error}", error.__cause__) from error
