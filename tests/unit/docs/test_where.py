"""docs/where.md: what it names is there, and no call, check or module is left out."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

from dockershim.api.cri.v1 import api_pb2
from dockershim.doctor.checks import CHECKS

ROOT = Path(__file__).parents[3]
PACKAGES = ("dockershim", "background", "checkpoints", "cni", "loopio", "streaming")
FOLDERS = (*PACKAGES, "tests", "docs", "deploy", "bench", "examples")
PAGE = (ROOT / "docs/where.md").read_text()
KINDS = (
    "A flag",
    "A flag of cri-dockerd",
    "A call of the CRI",
    "A field of a request",
    "A limit of a container",
    "A bound of the server",
    "A metric",
    "A check of the doctor",
    "A step of setup",
    "A step of migrate",
    "A hook point",
    "An event of NRI",
    "A line of the server's log",
    "A line of a container's log",
)


def section(title: str) -> str:
    return PAGE.split(f"\n## {title}\n", 1)[1].split("\n## ", 1)[0]


def rows(title: str, heading: str) -> Iterator[tuple[list[str], list[Path]]]:
    """The rows of a section's table with this heading: what is in backticks in the first cell, and the paths beside."""
    table = section(title).split(f"| {heading} |", 1)[1].split("\n\n", 1)[0]
    for line in table.splitlines()[2:]:
        _, first, second, _ = line.split("|")
        yield re.findall(r"`([^`]+)`", first), [Path(path) for path in re.findall(r"`([^`]+)`", second)]


def snake(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_says_where_its_code_pages_and_tests_are_and_how_to_see_it(kind: str) -> None:
    cells = dict(re.findall(r"^\| (Code|Pages|Tests|See) \| (.+) \|$", section(kind), re.MULTILINE))
    assert cells.keys() == {"Code", "Pages", "Tests", "See"}


def test_each_path_is_there() -> None:
    named = re.findall(rf"`((?:{'|'.join(FOLDERS)})/[^`\s]+)`", PAGE)
    assert len(named) > 100
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_each_call_that_is_built_is_in_the_module_that_is_named() -> None:
    not_built = (ROOT / "docs/architecture.md").read_text().split("## Not built yet", 1)[1]
    services = api_pb2.DESCRIPTOR.services_by_name
    calls = {call.name for name in ("RuntimeService", "ImageService") for call in services[name].methods}
    named = {call: path for some, (path,) in rows("A call of the CRI", "Calls") for call in some}
    assert named.keys() == calls - set(re.findall(r"`([A-Z]\w+)`", not_built))
    # A list is streamed by the module that lists.
    methods = {call: snake(call).replace("stream_", "list_").replace("sandboxes", "sandbox") for call in named}
    elsewhere = [call for call, path in named.items() if not _has_method(path, methods[call])]
    assert elsewhere == []


def _has_method(path: Path, name: str) -> bool:
    module = import_module(".".join(path.with_suffix("").parts))
    return any(isinstance(one, type) and name in vars(one) for one in vars(module).values())


def test_each_check_of_the_doctor_is_in_the_table() -> None:
    named = [check for some, _ in rows("A check of the doctor", "Checks") for check in some]
    assert sorted(named) == sorted(CHECKS)


def test_each_module_has_a_test_of_its_name_or_a_row() -> None:
    named = {Path(module): tests for (module,), tests in rows("Which tests are whose", "Module")}
    modules = {
        path.relative_to(ROOT)
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        if "_pb2" not in path.name and not path.name.startswith("__")
    }
    without = {module for module in modules if not (ROOT / _test_of(module)).exists()}
    assert sorted(named) == sorted(without), "one that has a test of its name needs no row"
    assert [module for module, tests in named.items() if not tests] == []


def _test_of(module: Path) -> Path:
    inner = module.relative_to("dockershim") if module.parts[0] == "dockershim" else module
    return Path("tests/unit", inner.parent, f"test_{inner.name.removeprefix('_')}")
