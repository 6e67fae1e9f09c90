#!/bin/sh
# Finds a Python 3.11 to 3.14 and starts @PROGRAM@ with it. PYTHON=/path/to/python chooses one.
set -eu

fits() {
  "$1" -I -S -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))' 2>/dev/null
}

if [ -n "${PYTHON:-}" ]; then
  fits "$PYTHON" || {
    echo "@NAME@: PYTHON=$PYTHON: must be a Python 3.11 to 3.14" >&2
    exit 1
  }
else
  for PYTHON in python3 python3.14 python3.13 python3.12 python3.11 ''; do
    [ -z "$PYTHON" ] || ! fits "$PYTHON" || break
  done
  [ -n "$PYTHON" ] || {
    echo "@NAME@: there is no Python 3.11 to 3.14 in the PATH. Install the package python3, or where that is older" >&2
    echo "python3.12 or python3.11 (RHEL 9), or set PYTHON=/path/to/python." >&2
    exit 1
  }
fi
case $0 in
*/*) here=${0%/*} ;;
*) here=. ;;
esac
exec "$PYTHON" -I -S -B @PROGRAM@ "$@"
