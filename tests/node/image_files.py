"""How images are made: layers out of files, written in the layout in which a registry stores images.

Nothing is pulled from outside: a registry on the node's loopback serves the folder (docs: distribution, "storage
driver" paths). The name of the registry is not part of the layout, so one folder answers for all hosts that images are
asked from.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import platform
import subprocess
import tarfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

ARCHITECTURE = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
MANIFEST_TYPE = "application/vnd.docker.distribution.manifest.v2+json"
CONFIG_TYPE = "application/vnd.docker.container.image.v1+json"
LAYER_TYPE = "application/vnd.docker.image.rootfs.diff.tar.gzip"
SEARCH_PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
SHELL = {"Cmd": ["sh"]}


@dataclass(frozen=True, slots=True)
class Entry:
    """One member of a layer, owned by root: a folder, a file with `content`, or a hard link to `same_as`."""

    path: str
    content: bytes = b""
    mode: int = 0o644
    same_as: str | None = None
    is_folder: bool = False


@dataclass(frozen=True, slots=True)
class Image:
    """An image: `names` are repository:tag without a host, `layers` are keys of LAYERS, lowest first."""

    names: tuple[str, ...]
    layers: tuple[str, ...]
    config: Mapping[str, object] = field(default_factory=lambda: SHELL)


Layers = Mapping[str, Callable[[], Iterable[Entry]]]


def write(storage: Path, images: Iterable[Image], layers: Layers) -> None:
    """Write the images where a registry with the storage folder `storage` finds them. Each layer is made once."""
    made: dict[str, Layer] = {}
    for image in images:
        for name in image.layers:
            if name not in made:
                made[name] = pack(layers[name]())
        _store(storage, image, Blobs.of(image, [made[name] for name in image.layers]))


# Layers


def folders(*paths: str, mode: int = 0o755) -> Iterator[Entry]:
    """Empty folders."""
    return (Entry(path, mode=mode, is_folder=True) for path in paths)


def program(source: Path, path: str, mode: int = 0o755) -> Entry:
    """The program of the unpacked packages in `source`, at the same place."""
    return Entry(path, (source / path).read_bytes(), mode)


def libraries(source: Path, *programs: str) -> Iterator[Entry]:
    """The shared libraries of `programs` and their loader, at the paths where the programs look for them."""
    loader = _loader(source)
    for path in programs:
        for line in loaded(source, "--list", path).splitlines():
            name, _, found = line.strip().rpartition(" (")[0].partition(" => ")
            if name.startswith("/"):
                yield Entry(name.removeprefix("/"), loader.read_bytes(), 0o755)
            elif found:
                yield Entry(str(Path(found).relative_to(source)), Path(found).read_bytes(), 0o755)


def loaded(source: Path, *words: str) -> str:
    """What a program of `source` prints with the libraries of `source`. Its path may follow options of the loader."""
    found = ":".join(str(folder) for folder in (*source.glob("lib/*-linux-gnu"), *source.glob("usr/lib/*-linux-gnu")))
    path = next(index for index, word in enumerate(words) if not word.startswith("-"))
    command = [str(_loader(source)), "--library-path", found, *words[:path], str(source / words[path])]
    return subprocess.run([*command, *words[path + 1 :]], capture_output=True, text=True, check=True).stdout


def _loader(source: Path) -> Path:
    return next(source.glob("lib/*/ld-linux-*.so.*"))


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer: the digest of its tar archive, and the archive compressed."""

    archive: str
    compressed: bytes


def pack(entries: Iterable[Entry]) -> Layer:
    """The layer that holds `entries`, the same bytes on every run (no time, no owner but root)."""
    packed = io.BytesIO()
    seen: set[str] = set()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for entry in entries:
            if entry.path not in seen:
                archive.addfile(_member(entry), io.BytesIO(entry.content))
            seen.add(entry.path)
    archived = packed.getvalue()
    return Layer(digest(archived), gzip.compress(archived, mtime=0))


def _member(entry: Entry) -> tarfile.TarInfo:
    member = tarfile.TarInfo(entry.path)
    member.mode = entry.mode
    member.size = len(entry.content)
    if entry.is_folder:
        member.type = tarfile.DIRTYPE
    if entry.same_as is not None:
        member.type, member.linkname, member.mode = tarfile.LNKTYPE, entry.same_as, 0o755
    return member


# Storage


@dataclass(frozen=True, slots=True)
class Blobs:
    """What a registry keeps of one image."""

    manifest: bytes
    config: bytes
    layers: tuple[bytes, ...]

    @classmethod
    def of(cls, image: Image, layers: Sequence[Layer]) -> Self:
        """The blobs of an image with these layers."""
        compressed = tuple(layer.compressed for layer in layers)
        config = json.dumps(
            {
                "architecture": ARCHITECTURE,
                "os": "linux",
                "created": "2024-01-01T00:00:00Z",
                "config": {"Env": [SEARCH_PATH]} | dict(image.config),
                "rootfs": {"type": "layers", "diff_ids": [layer.archive for layer in layers]},
                "history": [{"created": "2024-01-01T00:00:00Z", "created_by": name} for name in image.layers],
            },
            sort_keys=True,
        ).encode()
        manifest = json.dumps(
            {
                "schemaVersion": 2,
                "mediaType": MANIFEST_TYPE,
                "config": _descriptor(CONFIG_TYPE, config),
                "layers": [_descriptor(LAYER_TYPE, layer) for layer in compressed],
            }
        ).encode()
        return cls(manifest, config, compressed)


def _store(storage: Path, image: Image, blobs: Blobs) -> None:
    for blob in (blobs.config, blobs.manifest, *blobs.layers):
        hexadecimal = digest(blob).removeprefix("sha256:")
        _write(storage / "docker/registry/v2/blobs/sha256" / hexadecimal[:2] / hexadecimal / "data", blob)
    for name in image.names:
        _link(storage, name, digest(blobs.manifest), [digest(blob) for blob in (blobs.config, *blobs.layers)])


def _link(storage: Path, name: str, manifest: str, blobs: Iterable[str]) -> None:
    repository, tag = name.split(":")
    folder = storage / "docker/registry/v2/repositories" / repository
    at = manifest.replace(":", "/")
    for blob in blobs:
        _write(folder / "_layers" / blob.replace(":", "/") / "link", blob.encode())
    for link in (f"revisions/{at}", f"tags/{tag}/current", f"tags/{tag}/index/{at}"):
        _write(folder / "_manifests" / link / "link", manifest.encode())


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def digest(blob: bytes) -> str:
    """The name of a blob."""
    return f"sha256:{hashlib.sha256(blob).hexdigest()}"


def _descriptor(media_type: str, blob: bytes) -> dict[str, object]:
    return {"mediaType": media_type, "size": len(blob), "digest": digest(blob)}
