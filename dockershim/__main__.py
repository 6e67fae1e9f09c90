"""``python -m dockershim``."""

from __future__ import annotations

import sys

from dockershim.server.cli import main

sys.exit(main())
