"""The checkpoints of pods: the files on disk, and their content in memory."""

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
    """The checkpoints in ``store`` and in the stores of other dockershims below the ``adopted`` root directories.

    Nobody else writes ``store`` while this process holds its lock. Blocks on the file system.
    """

    def __init__(self, store: Store, adopted: Iterable[Path] = ()) -> None:
        self._store = store
        self._known: dict[str, Checkpoint] = {}
        #: By sandbox id: the other stores that have a file of it.
        self._others: dict[str, list[Store]] = {}
        for root in adopted:
            other = Store(root / "sandbox", foreign=True)
            found = _load(other)
            logger.info("adopted %d checkpoints from %s", len(found), root)
            for sandbox_id in found:
                self._others.setdefault(sandbox_id, []).append(other)
            self._known |= found
        self._known |= _load(store)

    @property
    def by_id(self) -> Mapping[str, Checkpoint]:
        """The checkpoints by sandbox id."""
        return self._known

    def damaged(self) -> int:
        """The number of files that were set aside because they cannot be read."""
        return self._store.damaged()

    async def write(self, checkpoint: Checkpoint) -> None:
        """Write it to disk. It is known afterwards, even if the caller is cancelled meanwhile. Raises ShimError."""
        with _errors("write"):
            await run_to_completion(self._write(checkpoint), "write the checkpoint")

    async def _write(self, checkpoint: Checkpoint) -> None:
        await with_own_files(self._store.write, checkpoint)
        self._known[checkpoint.sandbox_id] = checkpoint

    async def remove(self, sandbox_id: str) -> None:
        """Remove the checkpoint, here and in the adopted stores. Raises ShimError.

        The other dockershim would take a file that stays behind for a pod, even if the pod has no containers.
        """
        with _errors("remove"):
            for store in (self._store, *self._others.get(sandbox_id, ())):
                await with_own_files(store.remove, sandbox_id)
        self._known.pop(sandbox_id, None)


def _load(store: Store) -> dict[str, Checkpoint]:
    """Load a store. Errors are only logged, so that the server serves the pods that the engine has all the same."""
    try:
        loaded, problems = store.load_all()
    except CheckpointError as error:
        logger.error("%s; pods that the engine has lost are unknown", error)
        return {}
    for problem in problems:
        logger.error("checkpoint: %s", problem)
    return {checkpoint.sandbox_id: checkpoint for checkpoint in loaded}


@contextmanager
def _errors(what: str) -> Iterator[None]:
    try:
        yield
    except CheckpointError as error:
        raise disk_error(f"cannot {what} the checkpoint of the sandbox: {error}", error.__cause__) from error
