"""A registry's storage folder with images that are made of Debian packages and of Kubernetes' own programs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tests.node import image_files
from tests.node.cache import appearing, entry, locked, used
from tests.node.image_files import Image, Layers
from tests.node.packages import Suite


def provide(
    name: str,
    made_by: str,
    images: Sequence[Image],
    layers: Callable[[Path, Mapping[str, Path]], Layers],
    *,
    suite: Suite,
    packages: tuple[str, ...],
    built: Mapping[str, Path],
) -> Path:
    """The folder, made once for each content of ``made_by``, the file of the module that describes the images.

    ``layers`` gets the unpacked packages, with all they depend on, and the programs ``built``, each by its name.
    """
    content = b"".join(Path(path).read_bytes() for path in (made_by, image_files.__file__))
    made_of = (*packages, *(path.parent.name for path in built.values()))
    target = entry(f"{name}-registry", content + " ".join(made_of).encode())
    with locked(f"{name}-registry"):
        source = suite.unpack(packages, entry(f"{name}-source", " ".join(packages)), with_dependencies=True)
        if not used(target):
            with appearing(target) as storage:
                image_files.write(storage, images, layers(source, built))
    return target
