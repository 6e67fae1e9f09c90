"""What e2e_node is told wherever it runs: words for ginkgo and for the suite, and the configuration of its kubelet."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

#: Seconds for the whole suite in a test node.
TIME_LIMIT: Final = 3600
#: The suite's RuntimeClass, which its own nodes are configured with.
RUNTIME: Final = "test-handler"
#: As in the suite's own default (test/e2e_node/jenkins/default-kubelet-config.yaml), but for what depends on the node.
KUBELET: Final[Mapping[str, Any]] = {
    "apiVersion": "kubelet.config.k8s.io/v1beta1",
    "kind": "KubeletConfiguration",
    "cgroupRoot": "/",
    "podCIDR": "10.100.0.0/24",
    "volumeStatsAggPeriod": "10s",
    "fileCheckFrequency": "10s",
    "evictionPressureTransitionPeriod": "30s",
    "serializeImagePulls": False,
}
_CONFORMANCE: Final = r"\[NodeConformance\]"
# What a conformant node need not do.
_LEFT_OUT: Final = (r"\[Flaky\]", r"\[Slow\]", r"\[Disruptive\]", r"\[Alpha\]", r"\[Feature:", r"\[FeatureGate")
# Specs that fail now and then anywhere.
_FLAKY: Final = (r"\[Flaky\]",)
# Those that end the kubelet, or fill the machine: a test node shares it with others.
_DISRUPTIVE: Final = (r"\[Disruptive\]",)
_SERIAL: Final = "Serial"


def choice(asked: str | None, features: str | None, serial: bool, own_machine: bool) -> tuple[str, ...]:
    """ginkgo's options for the conformance specs whose name matches ``asked``, or all of those of ``features``.

    ``serial`` takes the specs that run alone, instead of all others. On a machine of its own the suite may disrupt it.
    """
    left_out = (_FLAKY if own_machine else _FLAKY + _DISRUPTIVE) if features else _LEFT_OUT
    return (
        f"--focus={features or focus(asked)}",
        f"--skip={'|'.join(left_out)}",
        f"--label-filter={_SERIAL if serial else f'!{_SERIAL}'}",
    )


def focus(asked: str | None) -> str:
    """A regular expression for the conformance specs whose name matches ``asked``, before or behind that word."""
    return f"({asked}).*{_CONFORMANCE}|{_CONFORMANCE}.*({asked})" if asked else _CONFORMANCE


def arguments(server: str, configuration: str, gates: str) -> tuple[str, ...]:
    """The suite's own: the server's endpoint, the file of the kubelet's configuration, feature gates of the kubelet."""
    return (
        "--prepull-images=false",
        f"--container-runtime-endpoint={server}",
        f"--kubelet-config-file={configuration}",
        f"--feature-gates={gates}",
    )
