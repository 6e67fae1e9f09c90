"""A network plugin that does what the file ``<its own path>.steering`` says.

Keys, in the order they act: ``record`` (path: append a line of JSON with the environment, the configuration and
whether it leads a session), ``stderr``, ``ignore_term``, ``background`` (seconds that a child lives on, holding every
descriptor), ``announce`` (path: made once the plugin runs), ``sleep`` (seconds), ``flood`` (bytes of output),
``stdout``, ``exit``.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

steering = json.loads(Path(sys.argv[0]).with_suffix(".steering").read_text())
config = sys.stdin.read()
if "record" in steering:
    seen = {
        "env": {key: value for key, value in os.environ.items() if key.startswith("CNI_")},
        "config": json.loads(config),
        "session": os.getsid(0) == os.getpid(),
    }
    with Path(steering["record"]).open("a") as record:
        record.write(json.dumps(seen) + "\n")
sys.stderr.write(steering.get("stderr", ""))
sys.stderr.flush()
if steering.get("ignore_term"):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if "background" in steering and os.fork() == 0:
    time.sleep(steering["background"])
    os._exit(0)
if "announce" in steering:
    Path(steering["announce"]).write_text(str(os.getpid()))
time.sleep(steering.get("sleep", 0))
if "flood" in steering:
    sys.stdout.write("x" * steering["flood"])
sys.stdout.write(steering.get("stdout", "{}"))
sys.stdout.flush()
sys.exit(steering.get("exit", 0))
