"""Times CNI plugins."""

from __future__ import annotations

import cni
from dockershim.common.timed import Kind, timed


class TimedPlugins:
    """Runs CNI plugins with another executor, and times each. One that reports a failure raises nothing here."""

    def __init__(self, executor: cni.Executor) -> None:
        self._executor = executor

    async def run(self, invocation: cni.Invocation) -> cni.Completion:
        """See ``cni.Executor``."""
        plugin = invocation.plugin
        with timed(Kind.PLUGIN, invocation.command, plugin.name, about=plugin) as run:
            completion = await self._executor.run(invocation)
            if completion.exit_status:
                run.code, run.message = "INTERNAL", f"exit status {completion.exit_status}"
        return completion
