"""Where an engine writes a log, before it says so."""

from __future__ import annotations

from dockershim.engine_files.logs import log_path


def test_the_log_of_a_container_is_below_the_engines_root() -> None:
    assert log_path("/var/lib/docker", "1c") == "/var/lib/docker/containers/1c/1c-json.log"
