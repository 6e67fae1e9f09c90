"""What the C library does with the memory of long answers."""

from __future__ import annotations

import subprocess
import sys

PAGES = """
import resource
{first}
def answer():
    return bytes(b"x" * 600_000), bytes(bytearray(500_000))
for _ in range(3):
    answer()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(50):
    answer()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
TUNED = "from dockershim.server.heap import keep_memory_of_answers\nkeep_memory_of_answers()"


def page_faults(first: str) -> int:
    program = PAGES.format(first=first)
    return int(subprocess.run([sys.executable, "-c", program], check=True, capture_output=True).stdout)


def test_the_memory_of_one_answer_serves_for_the_next() -> None:
    assert page_faults(TUNED) < 500 < page_faults("")
