"""How a suite of Kubernetes runs: ginkgo shares its specs among processes."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

JUNIT: Final = "junit.xml"
#: In the names of the specs that every conformant cluster passes.
CONFORMANCE: Final = r"\[Conformance\]"


@dataclass(frozen=True, slots=True)
class Suite:
    """The programs ``ginkgo`` and ``program``, a folder for reports, and seconds for all of it.

    ``entrance`` are the words that run a command where the cluster is reached, if that is not here.
    """

    ginkgo: Path
    program: Path
    report: Path
    time_limit: float
    entrance: Sequence[str | Path] = ()

    def run(self, folder: Path, options: Sequence[str], arguments: Sequence[str]) -> int:
        """Run it with ginkgo's `options` and its own `arguments`; give its exit code.

        The JUnit report and the log go to the report's folder, what the suite leaves beside itself to `folder`.
        """
        # ginkgo starts the suite in the folder where it is.
        suite = folder / self.program.name
        suite.symlink_to(self.program)
        command = [*map(str, self.entrance), *self.command(suite, options, arguments)]
        with (self.report / f"{self.program.stem}.log").open("wb") as log:
            return self._wait(subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log))

    def command(self, suite: Path, options: Sequence[str], arguments: Sequence[str]) -> list[str]:
        """The words that run the program by its path ``suite``; it writes beside that."""
        return [
            str(self.ginkgo),
            # A fixed order: a failure that depends on what ran before can be seen again.
            "--seed=1",
            "--no-color",
            f"--timeout={self.time_limit:.0f}s",
            f"--output-dir={self.report}",
            f"--junit-report={JUNIT}",
            *options,
            str(suite),
            "--",
            f"--report-dir={self.report}",
            *arguments,
        ]

    def _wait(self, suite: subprocess.Popen[bytes]) -> int:
        """The suite ends itself in time; if it does not, SIGTERM and SIGKILL do."""
        for patience, end in ((self.time_limit + 60, suite.terminate), (60, suite.kill)):
            with contextlib.suppress(subprocess.TimeoutExpired):
                return suite.wait(patience)
            end()
        return suite.wait()
