"""The engine's own store of image layers."""

from __future__ import annotations

import os
import re
from pathlib import Path

_CHAIN_ID = re.compile(r"[0-9a-f]{64}")


def read_size(root: Path, driver: str) -> int | None:
    """The bytes of all image layers in the store below the engine's root folder; None if there is no store.

    Each layer counts once, as the engine has noted it in ``image/<driver>/layerdb/sha256/<chain id>/size`` since
    Docker 1.10. Not for containerd's image store, beside which there may be such a store of an earlier time.
    """
    store = root / "image" / driver / "layerdb" / "sha256"
    size = 0
    try:
        chains = [path for path in store.iterdir() if _CHAIN_ID.fullmatch(path.name)]
    except OSError:
        return None
    for chain in chains:
        try:
            size += int((chain / "size").read_text())
        except (OSError, ValueError):
            # The engine is making or removing this layer.
            continue
    return size


def used_inodes(folder: str) -> int | None:
    """The inodes in use on the file system of a folder; None if this process does not see the folder."""
    try:
        found = os.statvfs(folder)
    except OSError:
        return None
    return found.f_files - found.f_ffree
