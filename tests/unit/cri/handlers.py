"""Every handler of the two services, of groups that do nothing."""

from __future__ import annotations

from dataclasses import fields
from unittest.mock import MagicMock

from dockershim.cri import RuntimeService, image_handlers

RUNTIME = RuntimeService(**{group.name: MagicMock() for group in fields(RuntimeService)}).handlers()
IMAGES = image_handlers(MagicMock())
