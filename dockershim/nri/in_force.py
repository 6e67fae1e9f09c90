"""Where the CRI's calls find NRI."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dockershim.nri.events import Events


@dataclass(slots=True)
class NRIInForce:
    """``current`` is None while NRI is off."""

    current: Events | None = None
