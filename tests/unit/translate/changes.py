"""Changes of messages, by the paths of their fields."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dockershim.api.cri.v1 import api_pb2 as cri

Change = Callable[[cri.PodSandboxConfig], object]


def setting(path: str, value: Any) -> Change:
    """A change of the field at ``path``, the names of its messages separated by dots."""

    def change(config: cri.PodSandboxConfig) -> None:
        *messages, field = path.split(".")
        target: Any = config
        for message in messages:
            target = getattr(target, message)
        if isinstance(value, list):
            target.ClearField(field)
            getattr(target, field).extend(value)
        else:
            setattr(target, field, value)

    return change
