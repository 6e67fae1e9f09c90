"""What a kernel lacks is found, and has a name. No guest is needed."""

from __future__ import annotations

import pytest

from tests.vm.kernel import FRAGMENT, NEEDED, missing

OURS = FRAGMENT.read_text()
COMPLETE = OURS + "".join(f"CONFIG_{name}=y\n" for names in NEEDED.values() for name in names.split())


def test_a_kernel_with_everything_lacks_nothing() -> None:
    assert missing(COMPLETE, OURS) == []


@pytest.mark.parametrize(
    ("line", "instead", "found"),
    [
        pytest.param(
            "CONFIG_PSI=y\n",
            "# CONFIG_PSI is not set\n",
            ["`CONFIG_PSI=y` of uml.config", "CONFIG_PSI, which kubelet needs"],
            id="off",
        ),
        pytest.param(
            "CONFIG_TUN=y\n", "", ["`CONFIG_TUN=y` of uml.config"], id="in the fragment alone, and it does not exist"
        ),
        pytest.param(
            "CONFIG_NET=y\n",
            "CONFIG_NET=m\n",
            ["`CONFIG_NET=y` of uml.config", "CONFIG_NET, which systemd needs"],
            id="a module",
        ),
        pytest.param(
            "# CONFIG_STATIC_LINK is not set\n",
            "CONFIG_STATIC_LINK=y\n",
            ["`# CONFIG_STATIC_LINK is not set` of uml.config"],
            id="on, and should be off",
        ),
        pytest.param("# CONFIG_SOUND is not set\n", "", [], id="one that should be off and does not exist"),
    ],
)
def test_what_is_missing_has_a_name(line: str, instead: str, found: list[str]) -> None:
    assert line in COMPLETE
    assert missing(COMPLETE.replace(line, instead), OURS) == found


def test_an_option_that_is_dropped_from_the_fragment_is_still_asked_for() -> None:
    fragment = OURS.replace("CONFIG_CPUSETS=y\n", "")
    config = COMPLETE.replace("CONFIG_CPUSETS=y\n", "")
    assert missing(config, fragment) == ["CONFIG_CPUSETS, which Docker needs", "CONFIG_CPUSETS, which kubelet needs"]
