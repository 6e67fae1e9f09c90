"""Build hook: makes the Python modules of the APIs from their .proto, for wheels and editable installs alike."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Any

from grpc_tools import protoc
from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PROTOS = tuple(f"dockershim/api/{api}/api.proto" for api in ("cri/v1", "hooks/v1alpha1", "nri/v1alpha1", "ttrpc/v1"))


def generate(root: Path) -> None:
    """Write ``api_pb2.py`` and ``api_pb2.pyi`` beside each .proto under ``root``.

    The services need no stub classes: server and test client are made from the descriptors.
    """
    includes = [f"-I{root}", f"-I{resources.files('grpc_tools') / '_proto'}"]
    if protoc.main(["protoc", *includes, f"--python_out={root}", f"--pyi_out={root}", *PROTOS]) != 0:
        raise RuntimeError(f"one of {', '.join(PROTOS)} does not compile")


class GenerateStubs(BuildHookInterface[Any]):
    """What hatchling calls before it collects files."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name == "wheel":
            generate(Path(self.root))


if __name__ == "__main__":
    generate(Path(__file__).parent)
