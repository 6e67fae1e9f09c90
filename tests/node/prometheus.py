"""Prometheus as a process of the node: scrapes one server once a second, and answers queries."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self
from urllib.error import URLError
from urllib.parse import urlencode
from urllib.request import urlopen

CONFIG = """\
global: {{scrape_interval: 1s, scrape_timeout: 1s}}
scrape_configs:
  - job_name: dockershim
    static_configs: [{{targets: ["{target}"]}}]
"""
LOG = Path("/var/log/prometheus.log")


class PrometheusError(Exception):
    """Prometheus did not start or does not answer as it should; the text says what it said."""


@dataclass(slots=True)
class Prometheus:
    """Runs for the length of a block, and keeps nothing. ``target`` is the host and port of a server's metrics."""

    target: str
    address: str = "127.0.0.1:9090"
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)
    _folder: Path = field(default=Path(), repr=False)

    def __enter__(self) -> Self:
        self._folder = Path(tempfile.mkdtemp(prefix="prometheus-"))
        config = self._folder / "prometheus.yml"
        config.write_text(CONFIG.format(target=self.target))
        with LOG.open("wb") as log:
            self.process = subprocess.Popen(
                [
                    *("prometheus", f"--config.file={config}", f"--storage.tsdb.path={self._folder}/data"),
                    f"--web.listen-address={self.address}",
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._wait(lambda: self.query("vector(1)") != [], 30)
        return self

    def __exit__(self, *exc: object) -> None:
        if self.process is not None:
            self.process.terminate()
            self.process.wait(20)
        shutil.rmtree(self._folder)

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The samples of an instant query, each with ``metric`` and ``value``."""
        result: list[dict[str, Any]] = self._get("query", query=expression)["result"]
        return result

    def values_of(self, label: str, metric: str) -> list[str]:
        """The values of a label, as a dashboard's variable asks for them."""
        found: list[str] = self._get(f"label/{label}/values", **{"match[]": metric})
        return found

    def scrapes(self, count: int) -> None:
        """Wait for so many whole scrapes from now."""
        begun = time.time()
        seen: set[str] = set()

        def enough() -> bool:
            seen.update(sample["value"][1] for sample in self.query("timestamp(up) and up == 1"))
            return sum(float(moment) > begun for moment in seen) >= count

        self._wait(enough, count + 10)

    def _get(self, path: str, **parameters: str) -> Any:
        try:
            with urlopen(f"http://{self.address}/api/v1/{path}?{urlencode(parameters)}", timeout=10) as response:
                answer = json.load(response)
        except URLError as error:
            said = error.read().decode() if hasattr(error, "read") else LOG.read_text()[-2000:]
            raise PrometheusError(f"{path} {parameters}: {error}: {said}") from error
        return answer["data"]

    def _wait(self, condition: Callable[[], bool], timeout: float) -> None:
        deadline = time.monotonic() + timeout
        while True:
            try:
                if condition():
                    return
                problem = "it does not come"
            except PrometheusError as error:
                problem = str(error)
            if time.monotonic() > deadline:
                raise PrometheusError(problem)
            time.sleep(0.1)
