"""``python -m dockershim``."""

from __future__ import annotations

import sys

from dockershim.cli import main

sys.exit(main())
