"""What the documents and the units say of the code, held to the code."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path

import pytest

from dockershim.api.cri.v1 import api_pb2
from dockershim.server import config, cri_dockerd
from tests import options
from tests.unit.cri.handlers import IMAGES, RUNTIME

ROOT = Path(__file__).parents[3]
DOCUMENTS = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]
UNITS = [ROOT / "deploy/dockershim.service", ROOT / "deploy/dockershim.service.d/10-socket.conf"]
# Not options of a configuration, or flags of other programs that a document shows.
OTHER_FLAGS = {"--config", "--help", "--now", "--strict", "--runtime-endpoint", "--version", "--buildinfo"}
OTHER_FLAGS |= {"--socket", "--register", "--env", "--cpuset"}
OTHER_FLAGS |= {"--overwrite", "--container-runtime", "--cri-socket", "--json"}
OTHER_FLAGS |= {"--once", "--pod", "--force", "--lazy", "--make-rshared", "--all"}
OTHER_FLAGS |= {"--raw", "--export", "--check", "--repetitions"}
OTHER_FLAGS |= {"--download-only", "--kubernetes-version", "--image-repository"}
OTHER_FLAGS |= {"--cloudcore-ipport", "--token", "--remote-runtime-endpoint", "--cgroupdriver"}
OTHER_FLAGS |= {"--docker", "--flannel-backend", "--data-dir", "--embedded-registry", "--pause-image"}
OTHER_FLAGS |= {"--config-file", "--dearmor", "--name", "--quiet", "--set", "--validate"}
OTHER_FLAGS |= {"--annotation", "--privileged", "--runtime"}
OTHER_FLAGS |= {"--verify", "--checksig", "--show-keys", "--ignore-missing", "--import"}
OTHER_FLAGS |= {"--prefix", "--uninstall"}
OTHER_FLAGS |= {"--yes", "--undo", "--network", "--with", "--log-opt", "--back", "--keep-socket"}

each_document = pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)


def test_architecture_lists_exactly_the_calls_that_are_not_built() -> None:
    text = (ROOT / "docs/architecture.md").read_text()
    section = text.split("## Not built yet", 1)[1].split("What is planned", 1)[0]
    built = {handler.request.DESCRIPTOR.name for handler in (*RUNTIME, *IMAGES)}
    missing = {
        method.name
        for service in api_pb2.DESCRIPTOR.services_by_name.values()
        for method in service.methods
        if method.input_type.name not in built
    }
    assert set(re.findall(r"`([A-Z]\w+)`", section)) == missing


def test_the_floors_of_the_architecture_are_those_of_the_linter() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (floors,) = (contract["layers"] for contract in contracts if contract["type"] == "layers")
    (libraries,) = (one["source_modules"] for one in contracts if one["name"].startswith("The libraries know"))
    drawing = (ROOT / "docs/architecture.md").read_text().split("```mermaid", 1)[1].split("```", 1)[0]
    packages = {name.removeprefix("dockershim.") for floor in floors for name in re.split(r" [:|] ", floor)}
    assert set(re.findall(r"<b>(\w+)</b>", drawing)) == packages | set(libraries)


@each_document
def test_every_flag_in_a_document_exists(document: Path) -> None:
    known = {config.flag_name(key) for option in config.OPTIONS for key in option.keys} | OTHER_FLAGS
    assert set(re.findall(r"--[a-z][a-z0-9-]+", document.read_text())) - known == set()


@each_document
def test_every_make_target_in_a_document_exists(document: Path) -> None:
    makefiles = [ROOT / "Makefile", *ROOT.glob("*/*.mk"), *ROOT.glob("*/*/*.mk")]
    targets = {target for file in makefiles for target in re.findall(r"^([a-z0-9-]+):", file.read_text(), re.MULTILINE)}
    assert set(re.findall(r"(?:`|    )make ([a-z0-9-]+)", document.read_text())) - targets == set()


@each_document
def test_every_path_in_a_document_exists(document: Path) -> None:
    text = document.read_text()
    linked = {(document.parent / path) for path in re.findall(r"\]\((?!http)([^)#]+)", text)}
    named = {ROOT / path for path in re.findall(r"\b((?:deploy|tests|docs)/[\w./-]*\w)", text)}
    assert {str(path) for path in linked | named if not path.exists()} == set()


def test_every_table_of_defaults_is_true() -> None:
    rows = re.findall(r"^\| `(--[^|]+)` \| `([^|]+)` \|", (ROOT / "README.md").read_text(), re.MULTILINE)
    shown = {
        flag: default
        for flags, defaults in rows
        for flag, default in zip(flags.split("`, `"), defaults.split("`, `"), strict=True)
    }
    real = {config.flag_name(option.key): config.to_toml(option.default).strip('[]"') for option in config.OPTIONS}
    assert shown == {flag: real[flag] for flag in shown}
    assert len(shown) >= 6


def test_the_page_of_options_has_them_as_they_are() -> None:
    text = options.DOCUMENT.read_text()
    assert text == options.with_table(text), "run make tables"


@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.name)
def test_units_start_the_server_with_flags_that_it_takes(unit: Path) -> None:
    (command,) = re.findall(r"^ExecStart=(.+)$", unit.read_text(), re.MULTILINE)
    _, verb, *flags = shlex.split(command)
    assert verb == "serve"
    given = dict(flag.removeprefix("--").split("=", 1) for flag in flags)
    config.load({key.replace("-", "_"): value for key, value in given.items()}, {})


def test_the_unit_of_the_drop_in_is_that_of_the_server_with_other_names() -> None:
    ours, drop_in = (settings(ROOT / "deploy" / name) for name in ("dockershim.service", "cri-docker.service"))
    program, *arguments = shlex.split(drop_in.pop("ExecStart"))
    assert Path(program).name == cri_dockerd.NAME
    assert cri_dockerd.command(arguments) == {"container_runtime_endpoint": "fd://"}
    socket = "cri-docker.socket"
    assert (drop_in.pop("Requires"), drop_in.pop("After")) == (socket, f"{socket} {ours.pop('After')}")
    drop_in.pop("Documentation")
    drop_in["Description"] = drop_in["Description"].removesuffix(", in place of cri-dockerd")
    assert "ExecStart" in ours
    assert drop_in == {name: value for name, value in ours.items() if name != "ExecStart"}
    listens = settings(ROOT / "deploy" / socket)["ListenStream"]
    assert Path(listens) == Path(cri_dockerd.ENDPOINT.removeprefix("unix:///var"))


def settings(unit: Path) -> dict[str, str]:
    """The settings of a unit, whose names are all different."""
    return dict(re.findall(r"^([A-Z]\w+)=(.*)$", unit.read_text(), re.MULTILINE))


def test_the_service_waits_longer_than_calls_in_flight_may_take() -> None:
    unit = (ROOT / "deploy/dockershim.service").read_text()
    timeout = re.search(r"^TimeoutStopSec=(\d+)$", unit, re.MULTILINE)
    assert timeout is not None
    assert int(timeout[1]) > config.Config().shutdown_grace


def test_the_service_leaves_no_core_dump() -> None:
    """It would have the passwords of registries; docs/security.md promises that."""
    unit = (ROOT / "deploy/dockershim.service").read_text()
    assert re.findall(r"^LimitCORE=(.*)$", unit, re.MULTILINE) == ["0"]


def test_the_socket_unit_is_where_the_server_would_serve() -> None:
    assert (
        f"ListenStream={config.Config().container_runtime_endpoint.removeprefix('unix://')}\n"
        in (ROOT / "deploy/dockershim.socket").read_text()
    )
