"""The rule of conftest: a test that leaves a task behind fails."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

REPOSITORY = Path(__file__).parents[3]

LEAVES = """
import asyncio
task = None
async def test_leaves():
    global task
    task = asyncio.create_task(asyncio.sleep(60), name="forgotten")
"""
TIDY = """
import asyncio
async def test_tidy():
    await asyncio.create_task(asyncio.sleep(0), name="finished")
"""


@pytest.mark.parametrize(
    ("source", "outcome"),
    [pytest.param(LEAVES, "tasks left over: ['forgotten']", id="left"), pytest.param(TIDY, "1 passed", id="ended")],
)
def test_a_task_left_over_fails_its_test(source: str, outcome: str, tmp_path: Path) -> None:
    (tmp_path / "test_inner.py").write_text(source)
    command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-p", "no:cacheprovider"]
    command += ["-c", str(REPOSITORY / "pyproject.toml"), f"--rootdir={tmp_path}", str(tmp_path)]
    inner = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert outcome in inner.stdout
    assert (inner.returncode == 0) == (source == TIDY)
