"""The SELinux module of the packages: it links with a policy that has container-selinux's types, and labels the files.

No machine with SELinux is at hand: the policy is made of the types that the module names, and nothing is loaded.
"""

from __future__ import annotations

import bz2
import re
from pathlib import Path

import pytest

from deploy.rpm.__main__ import HERE
from tests.node.packages import SetupError, run
from tests.rpm.conftest import Packages

TYPES = re.findall(r"^\ttype (\w+);$", (HERE / "selinux/dockershim.te").read_text(), re.MULTILINE)
#: As little as checkmodule takes for a base.
BASE = """\
class process
class file
sid kernel
class process {{ transition }}
class file {{ execute }}
sensitivity s0;
dominance {{ s0 }}
category c0;
level s0:c0;
mlsconstrain file execute ( h1 dom h2 );
type kernel_t;
{types}
allow kernel_t self:process transition;
role system_r;
role system_r types kernel_t;
user system_u roles system_r level s0 range s0 - s0:c0;
sid kernel system_u:system_r:kernel_t:s0
"""


@pytest.fixture(scope="module")
def module(new: Packages, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the module of the package, as dockershim.pp, dockershim.mod and dockershim.fc."""
    folder = tmp_path_factory.mktemp("module")
    run("sh", "-c", f"rpm2cpio {new.selinux} | cpio --quiet -id", cwd=folder)
    package = folder / "dockershim.pp"
    package.write_bytes(bz2.decompress((folder / "usr/share/selinux/packages/dockershim.pp.bz2").read_bytes()))
    run("semodule_unpackage", package, folder / "dockershim.mod", folder / "dockershim.fc")
    return folder


def link(module: Path, types: list[str], folder: Path) -> None:
    """Link the module with a base that has these types. Raises SetupError."""
    (folder / "base.conf").write_text(BASE.format(types="\n".join(f"type {one};" for one in types)))
    run("checkmodule", "-M", "-o", folder / "base.mod", folder / "base.conf")
    run("semodule_package", "-o", folder / "base.pp", "-m", folder / "base.mod")
    run("semodule_link", "-o", folder / "linked.pp", folder / "base.pp", module / "dockershim.pp")
    run("semodule_expand", folder / "linked.pp", folder / "policy")


def test_it_links_with_the_types_of_container_selinux(module: Path, tmp_path: Path) -> None:
    link(module, TYPES, tmp_path)


@pytest.mark.parametrize("missing", TYPES)
def test_it_does_not_link_without_one(module: Path, missing: str, tmp_path: Path) -> None:
    with pytest.raises(SetupError, match=missing):
        link(module, [one for one in TYPES if one != missing], tmp_path)


@pytest.mark.parametrize(
    ("path", "kind", "label"),
    [
        ("/usr/bin/dockershim", "file", "container_runtime_exec_t"),
        ("/usr/bin/cri-dockerd", "file", "container_runtime_exec_t"),
        ("/usr/lib/dockershim/dockershim-runc", "file", "container_runtime_exec_t"),
        ("/etc/dockershim/config.toml.d/10-own.toml", "file", "container_config_t"),
        ("/var/lib/dockershim", "dir", "container_var_lib_t"),
        ("/var/lib/dockershim/sandbox/0123abcd", "file", "container_var_lib_t"),
        ("/run/dockershim.sock", "socket", "container_var_run_t"),
        ("/run/cri-dockerd.sock", "socket", "container_var_run_t"),
        ("/run/dockershim/runc.sock", "socket", "container_var_run_t"),
    ],
)
def test_a_path_has_its_label(module: Path, path: str, kind: str, label: str) -> None:
    shown = run("selabel_lookup", "-b", "file", "-f", module / "dockershim.fc", "-k", path, "-t", kind)
    assert f":{label}:s0" in shown


@pytest.mark.parametrize("path", ["/usr/lib/dockershim/bin/python", "/run/dockershimXsock", "/var/lib/dockershimX"])
def test_nothing_else_has_one(module: Path, path: str) -> None:
    with pytest.raises(SetupError):
        run("selabel_lookup", "-b", "file", "-f", module / "dockershim.fc", "-k", path, "-t", "file")
