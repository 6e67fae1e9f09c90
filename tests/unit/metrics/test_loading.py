"""What the metrics cost where nobody asks for them."""

from __future__ import annotations

import subprocess
import sys


def test_a_server_without_metrics_does_not_load_their_library() -> None:
    script = "import sys, dockershim.server.wiring; sys.exit('prometheus_client' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script]).returncode == 0
