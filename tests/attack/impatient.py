"""`python -m tests.attack.impatient SECONDS serve …`: the server, with little time for clients that do not read.

What is left for a client when its command has ended waits for minutes: longer than an attack goes on.
"""

from __future__ import annotations

import sys

from dockershim.server import cli
from streaming import lifetime


def main() -> int:
    seconds, *arguments = sys.argv[1:]
    lifetime.LINGER = float(seconds)
    return cli.main(arguments)


if __name__ == "__main__":
    sys.exit(main())
