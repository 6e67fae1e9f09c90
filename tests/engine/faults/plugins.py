"""CNI plugins that fail as ordered: a wrapper around each real plugin, which the server finds first."""

from __future__ import annotations

from pathlib import Path

from tests.engine.faults import orders

FOLDER = Path("/run/faults-plugins")
REAL = Path("/opt/cni/bin")

BEFORE = ("fails", "hangs")
AFTER = ("fails after", "hangs after", "dies after", "rubbish after", "half answer", "silent after")
HOLDS = ("held", "held after")

# "After" is when the real plugin has done its work. DEL has no answer to spoil.
WRAPPER = f"""\
#!/bin/sh
plugin=${{0##*/}}
real={REAL}/$plugin
pod=${{CNI_ARGS##*K8S_POD_NAME=}}
pod=${{pod%%;*}}
[ -n "$pod" ] || exec "$real"
echo "$CNI_COMMAND $plugin" >>"{orders.SEEN}/$pod"
name=$pod.cni.$CNI_COMMAND-$plugin
[ -e "{orders.WAITING}/$name" ] && mv "{orders.WAITING}/$name" "{orders.DONE}/$name" 2>/dev/null || exec "$real"
read -r fault <"{orders.DONE}/$name"
refuse() {{
  echo '{{"cniVersion": "0.4.0", "code": 11, "msg": "told to fail"}}'
  exit 1
}}
released() {{
  while [ -e "{orders.DONE}/$name" ]; do sleep 0.05; done
}}
case $fault in
  "fails") refuse ;;
  "hangs") exec sleep 1000 ;;
  "held") released; exec "$real" ;;
esac
answer=$("$real")
status=$?
case $fault in
  "fails after") refuse ;;
  "hangs after") exec sleep 1000 ;;
  "dies after") kill -KILL $$ ;;
  "rubbish after") echo "no JSON" ;;
  "half answer") printf %.20s "$answer" ;;
  "silent after") ;;
  "held after") released; printf %s "$answer"; exit $status ;;
esac
"""


def install() -> None:
    """Make the wrappers of all plugins that the node has."""
    FOLDER.mkdir()
    for plugin in REAL.iterdir():
        wrapper = FOLDER / plugin.name
        wrapper.write_text(WRAPPER)
        wrapper.chmod(0o755)


def remove() -> None:
    for wrapper in FOLDER.iterdir():
        wrapper.unlink()
    FOLDER.rmdir()
