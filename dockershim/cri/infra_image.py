"""The built-in image of infra containers, for nodes that cannot pull one.

The image is built in memory from the program in ``infra/``, with the same bytes each time for one architecture, in the
format of ``docker save``, which every engine loads (moby's image specification v1.2).
"""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from importlib import resources
from typing import Final

from dockershim.errors import FailedPrecondition

# A new program or a new configuration needs a new tag: nodes keep an image that they have loaded.
BUILTIN_INFRA_IMAGE: Final = "dockershim/pause:1"

# By the names of Go, as in the engine's /version, and of uname, as in its /info.
_ARCHITECTURES: Final = {"amd64": "amd64", "x86_64": "amd64", "arm64": "arm64", "aarch64": "arm64"}
_CREATED: Final = "1970-01-01T00:00:00Z"
# Nobody: the program needs no rights. The number is the one of Kubernetes' own pause image.
_USER: Final = "65535:65535"


def docker_archive(architecture: str) -> bytes:
    """A tar for ``POST /images/load`` that holds BUILTIN_INFRA_IMAGE; less than 32 KiB.

    ``architecture`` is the engine's: amd64 or x86_64, arm64 or aarch64. Raises FailedPrecondition for any other.
    """
    name = _ARCHITECTURES.get(architecture)
    if name is None:
        raise FailedPrecondition(
            f"there is no built-in infra image for {architecture}: set --pod-infra-container-image"
        )
    program = resources.files("dockershim").joinpath("infra", f"pause-{name}").read_bytes()
    layer = _tar({"pause": program}, mode=0o755)
    config = _json(_config(name, hashlib.sha256(layer).hexdigest()))
    config_name = f"{hashlib.sha256(config).hexdigest()}.json"
    manifest = _json([{"Config": config_name, "RepoTags": [BUILTIN_INFRA_IMAGE], "Layers": ["layer.tar"]}])
    return _tar({config_name: config, "layer.tar": layer, "manifest.json": manifest}, mode=0o644)


def _config(architecture: str, layer_digest: str) -> dict[str, object]:
    return {
        "architecture": architecture,
        "os": "linux",
        "created": _CREATED,
        "config": {"Entrypoint": ["/pause"], "User": _USER, "WorkingDir": "/"},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{layer_digest}"]},
        "history": [{"created": _CREATED, "created_by": "dockershim"}],
    }


def _json(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode("ascii")


def _tar(files: dict[str, bytes], mode: int) -> bytes:
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            member.mode = mode
            tar.addfile(member, io.BytesIO(content))
    return archive.getvalue()
