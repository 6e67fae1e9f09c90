"""`python -m tests.kubelets.pin 1.33.13`: write go.mod and go.sum of that release, in place of its minor version's.

What Kubernetes' own go.mod replaces by folders of its repository are modules of their own on a proxy: v0.33.13 there.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.kubernetes import programs

_SETTING = re.compile(r"^(?:go|godebug) .+$", re.MULTILINE)
_IN_ITS_REPOSITORY = re.compile(r"^\s*(\S+) => \./staging/\S+$", re.MULTILINE)


def go_mod(own: str, version: str) -> str:
    """The go.mod of a module that needs this Kubernetes and nothing else; ``own`` is the go.mod of Kubernetes."""
    minor = version.rpartition(".")[0]
    settings = "\n\n".join(_SETTING.findall(own))
    replaced = "\n".join(
        f"\t{name} => {name} v0.{version.partition('.')[2]}" for name in _IN_ITS_REPOSITORY.findall(own)
    )
    return f"""\
module dockershim/tests/kubernetes/releases/{minor}

{settings}

require {programs.KUBERNETES} v{version}

replace (
{replaced}
)
"""


def pin(version: str) -> None:
    minor = version.rpartition(".")[0]
    module = programs.MODULES / minor
    with tempfile.TemporaryDirectory() as outside:
        found = _go("mod", "download", "-json", f"{programs.KUBERNETES}@v{version}", folder=Path(outside))
    module.mkdir(exist_ok=True)
    (module / "go.mod").write_text(go_mod(Path(json.loads(found)["GoMod"]).read_text(), version))
    (module / "go.sum").unlink(missing_ok=True)
    # It writes the sums of all that the programs need; `-test` for the suites, which are tests to Go.
    _go("list", "-mod=mod", "-deps", "-test", *packages(minor), folder=module)


def packages(minor: str) -> list[str]:
    """What is built of a release: all, if its suites are run."""
    with_suites = sorted({*programs.RELEASES, minor}, key=programs.numbers)[-len(programs.SUITES) :]
    names = programs.PROGRAMS if minor in with_suites else ("kubelet",)
    return [programs.PROGRAMS[name][1] for name in names]


def _go(*words: str, folder: Path) -> str:
    return subprocess.run(["go", *words], cwd=folder, check=True, stdout=subprocess.PIPE, text=True).stdout


if __name__ == "__main__":
    for one in sys.argv[1:]:
        pin(one)
