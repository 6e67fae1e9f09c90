"""The fuzzer of files of /proc on its corpus, and on random inputs."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fuzz import proc as fuzz

CORPUS = Path(fuzz.__file__).parent / "corpus" / "proc"


@given(st.integers(0, 255), st.binary())
def test_any_bytes_are_read(way: int, content: bytes) -> None:
    fuzz.run(bytes([way]) + content)


@pytest.mark.parametrize("path", sorted(CORPUS.iterdir()), ids=lambda path: path.name)
def test_the_corpus_of_the_fuzzer(path: Path) -> None:
    fuzz.run(path.read_bytes())
