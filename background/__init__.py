"""Tasks by their kind: who learns of a task's failure decides how it is made.

``child`` makes one whose maker awaits it. ``start`` makes one that nobody awaits: its failure is logged and counted the
moment it happens. ``keep`` does the same for work that must go on, and begins it again. Nothing else of this program
makes tasks.
"""

from __future__ import annotations

from background.tasks import Tasks, child, end, failures, keep, kept, start

__all__ = ["Tasks", "child", "end", "failures", "keep", "kept", "start"]
