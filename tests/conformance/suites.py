"""How a suite of Ginkgo runs in a test node, and how its report is held to the list of what is expected."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.conformance.verdict import Difference, Expectation, Spec, compare, key, picked, read_report
from tests.node.cache import REPOSITORY
from tests.node.packages import SetupError

_WIDTH: Final = 80


@dataclass(frozen=True, slots=True)
class Run:
    """A run of the suite `name` on an engine. Its reports go to a folder of `build/`, which has the name `folder`."""

    name: str
    engine: str
    folder: str
    started: float = field(default_factory=time.monotonic)

    @property
    def report(self) -> Path:
        return REPOSITORY / "build" / self.folder

    def specs(self, junit: str, inside: str, program: Path, *arguments: str) -> list[Spec]:
        """Run the module `inside` in a node, with `program`, a folder for reports and `arguments`.

        Gives what stands in the report `junit` of that folder. SetupError if there is none.
        """
        node = (sys.executable, "-m", "tests.node", "--engine", self.engine, "--")
        command = (sys.executable, "-m", inside, str(program))

        def run(folder: Path) -> int:
            # The suite's own exit code says less than its report: it is 1 for failures that are expected, too.
            return subprocess.run([*node, *command, str(folder), *arguments], cwd=REPOSITORY).returncode

        return self.reported(junit, run)

    def reported(self, junit: str, run: Callable[[Path], int]) -> list[Spec]:
        """What stands in the report `junit` that `run` writes into a folder; it gives the suite's exit code.

        SetupError if there is none.
        """
        self.report.parent.mkdir(exist_ok=True)
        # Two runs at once keep apart; what the last one wrote stands under the report's name, whatever came of it.
        own = Path(tempfile.mkdtemp(dir=self.report.parent, prefix=f".{self.folder}-"))
        try:
            code = run(own)
        finally:
            shutil.rmtree(self.report, ignore_errors=True)
            own.rename(self.report)
        written = self.report / junit
        if not written.exists():
            raise SetupError(f"{self.name} wrote no report (exit code {code}), see {self.report}")
        return read_report(written.read_text())

    def judge(self, specs: Sequence[Spec], expected: Iterable[Expectation], *, whole: bool) -> int:
        """Print what differs from the list. 0 if nothing does, else 1.

        If the run is not the `whole` of the suite, only what ran has to be as the list says.
        """
        if not whole:
            specs = picked(specs)
            ran = {key(spec.name) for spec in specs}
            expected = [expectation for expectation in expected if key(expectation.name) in ran]
        differences = compare(specs, expected)
        sys.stdout.write(self._summary(specs, differences))
        return 1 if differences else 0

    def _summary(self, specs: Sequence[Spec], differences: Sequence[Difference]) -> str:
        """The differences, then one line in pytest's words, so that whoever reads pytest's reads this one too."""
        different = {difference.name for difference in differences}
        words = {"passed": "passed", "failed": "xfailed", "skipped": "skipped"}
        counts = Counter({"failed": len(differences)})
        counts.update(words[spec.outcome] for spec in specs if spec.name not in different)
        told = ", ".join(f"{count} {word}" for word, count in counts.items() if count)
        seconds = time.monotonic() - self.started
        last = f" {self.name}, engine {self.engine}: {told} in {seconds:.2f}s "
        lines = [*(f"UNEXPECTED {difference.text}" for difference in differences), f"reports: {self.report}"]
        return "\n".join([*lines, last.center(_WIDTH, "="), ""])
