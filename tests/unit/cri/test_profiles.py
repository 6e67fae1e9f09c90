"""AppArmor profiles of a security context beside those that the node's kernel has loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from dockershim.api.cri.v1 import api_pb2 as cri
from dockershim.cri import profiles
from dockershim.errors import FailedPrecondition
from dockershim.host_paths.server_side import HostPaths
from dockershim.translate.security import SecurityContext

NO_PATHS = cast(HostPaths, None)
LOADED = "docker-default (enforce)\nmine (local) (complain)\n/usr/bin/man//filter (enforce)\n"


def localhost(name: str, **fields: Any) -> cri.LinuxContainerSecurityContext:
    profile = cri.SecurityProfile(profile_type=cri.SecurityProfile.Localhost, localhost_ref=name)
    return cri.LinuxContainerSecurityContext(apparmor=profile, **fields)


@pytest.fixture
def loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "profiles"
    path.write_text(LOADED)
    monkeypatch.setattr(profiles, "APPARMOR_PROFILES", path)
    return path


@pytest.mark.usefixtures("loaded")
@pytest.mark.parametrize(
    "context",
    [
        pytest.param(localhost("docker-default"), id="loaded"),
        pytest.param(localhost("mine (local)"), id="a name with blanks"),
        pytest.param(localhost("/usr/bin/man//filter"), id="a child profile"),
        pytest.param(localhost("other", privileged=True), id="of a privileged container, which has none"),
        pytest.param(cri.LinuxContainerSecurityContext(apparmor_profile="runtime/default"), id="the default"),
    ],
)
async def test_a_profile_that_can_be_had(context: SecurityContext) -> None:
    assert await profiles.read_profiles(NO_PATHS, context) == {}


@pytest.mark.usefixtures("loaded")
@pytest.mark.parametrize(
    "context",
    [
        pytest.param(localhost("localhost/mine"), id="a part of a name"),
        pytest.param(cri.LinuxContainerSecurityContext(apparmor_profile="localhost/mine"), id="the deprecated field"),
        pytest.param(cri.LinuxSandboxSecurityContext(apparmor=localhost("mine").apparmor), id="of the infra container"),
    ],
)
async def test_a_profile_that_is_not_loaded_is_refused(context: SecurityContext) -> None:
    with pytest.raises(FailedPrecondition, match=r"security_context\.apparmor: profile 'mine' is not loaded; load it"):
        await profiles.read_profiles(NO_PATHS, context)


async def test_a_server_that_does_not_see_the_list_leaves_it_to_the_runtime(loaded: Path) -> None:
    loaded.unlink()
    assert await profiles.read_profiles(NO_PATHS, localhost("mine")) == {}
