"""Tests that are shared among processes or nodes: one that fails beside others is run once more, alone.

The options are `-p tests.node.again --again=COMMAND`; COMMAND starts a Python, in a node if the tests need one. A test
that passes then is named as FLAKY behind the summary, is counted in the cache, and does not fail the run, as the
machine may have been busy with something else. What a test that passes leaves behind fails the run at once, and so do
more failures than a busy machine makes.
"""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Generator
from typing import Final

import pytest

from tests.node import flaky
from tests.node.cache import say

#: All but that of a crash.
_PHASES: Final = {"setup", "call", "teardown"}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--again", help="the command that starts a Python for the tests that are run once more")


def pytest_configure(config: pytest.Config) -> None:
    command = config.getoption("--again")
    # The processes that run the tests load this as well.
    if command and not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Again(shlex.split(command)))


class _Again:
    def __init__(self, command: list[str]) -> None:
        self._command = command
        self._failed: dict[str, set[str]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            # The crash of a process is reported as a phase of its own.
            self._failed.setdefault(report.nodeid, set()).add(str(report.when))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> Generator[None, object, object]:
        result = yield
        if (
            session.exitstatus == pytest.ExitCode.TESTS_FAILED
            and 0 < len(self._causes()) <= flaky.MOST
            # One that fails on its way may leave something, which its end tells as a second failure.
            and all(phases & {"setup", "call"} and phases <= _PHASES for phases in self._failed.values())
        ):
            self._run_again(session)
        return result

    def _causes(self) -> set[str]:
        """What failed: a fixture of a module fails the set-up of each of its tests."""
        return {test.partition("::")[0] if "setup" in phases else test for test, phases in self._failed.items()}

    def _run_again(self, session: pytest.Session) -> None:
        tests = sorted(self._failed)
        say(f"\nOnce more, alone: {' '.join(tests)}")
        options = ("-m", "pytest", "-p", "no:cacheprovider")
        done = subprocess.run([*self._command, *options, *tests], stdin=subprocess.DEVNULL)
        if done.returncode:
            return
        session.exitstatus = pytest.ExitCode.OK
        flaky.report(tests)
