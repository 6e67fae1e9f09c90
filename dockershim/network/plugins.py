"""CNI plugins as parts of traces."""

from __future__ import annotations

import cni
from dockershim.common import spans


class TracedPlugins:
    """Runs CNI plugins with another executor, each as a span of the call that needs it."""

    def __init__(self, executor: cni.Executor) -> None:
        self._executor = executor

    async def run(self, invocation: cni.Invocation) -> cni.Completion:
        """See ``cni.Executor``."""
        name = f"CNI {invocation.command} {invocation.plugin.name}"
        with spans.outside(name, {"cni.plugin": str(invocation.plugin)}) as span:
            completion = await self._executor.run(invocation)
            if completion.exit_status:
                span.failed(f"exit status {completion.exit_status}")
        return completion
