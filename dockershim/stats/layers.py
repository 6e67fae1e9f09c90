"""Layers on disk: the writable layer of a container, and the engine's store of image layers."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

_CHAIN_ID = re.compile(r"[0-9a-f]{64}")
_CACHE_ID = re.compile(r"[0-9a-z]+")
#: Storage drivers that keep the files of each layer unchanged in a folder of its own.
_OVERLAYS = frozenset({"overlay2", "fuse-overlayfs"})


@dataclass(frozen=True, slots=True)
class LayerUsage:
    """A container's writable layer at a time (nanoseconds since the epoch). The engine does not count ``inodes``."""

    measured_at: int
    bytes: int
    inodes: int | None


@dataclass(frozen=True, slots=True)
class ImageLayers:
    """``size`` is the sum of all layers as the engine counts them, each once, in bytes.

    ``folders`` have the files of each layer; empty for a storage driver that keeps them in another way.
    """

    size: int
    folders: frozenset[str]


def read_layers(root: Path, driver: str) -> ImageLayers | None:
    """The layers in the store below the engine's root folder; None if there is none. Not for containerd's image store,
    beside which there may be one of an earlier time.

    ``image/<driver>/layerdb/sha256/<chain id>/`` of each layer has its ``size`` and its ``cache-id``, which names its
    folder. This is so since Docker 1.10.
    """
    store = root / "image" / driver / "layerdb" / "sha256"
    size = 0
    folders = set()
    try:
        chains = [path for path in store.iterdir() if _CHAIN_ID.fullmatch(path.name)]
    except OSError:
        return None
    for chain in chains:
        try:
            size += int((chain / "size").read_text())
            cache_id = (chain / "cache-id").read_text()
        except (OSError, ValueError):
            # The engine is making or removing this layer.
            continue
        if driver in _OVERLAYS and _CACHE_ID.fullmatch(cache_id):
            folders.add(str(root / driver / cache_id / "diff"))
    return ImageLayers(size, frozenset(folders))
