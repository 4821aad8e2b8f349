#!/bin/sh
# Gathers in a new DIRECTORY all that `docker build DIRECTORY` needs: the wheel of this tree, the
# versions of its lock, and the files beside this script. PYTHON must have hatchling. SPARK=4.1 or
# 4.3 is another version of PySpark that is supported, instead of the lock's.
set -eu
[ $# -eq 1 ] || { echo "usage: [SPARK=4.1] $0 DIRECTORY" >&2; exit 2; }
root=$(cd "$(dirname "$0")/../.." && pwd)
lock=$root/requirements${SPARK:+-spark-$SPARK}.lock
[ -f "$lock" ] || { echo "$0: SPARK=$SPARK: there is no $lock" >&2; exit 2; }
mkdir "$1"
to=$(cd "$1" && pwd)
cd "$root"
"${PYTHON:-.venv/bin/python}" -m hatchling build -t wheel -d "$to" >/dev/null
# Without hashes: pip wants those of everything it installs, and the wheel of this tree has none.
pins() { sed -n 's/^\([A-Za-z0-9._-]*==[^\\]*[^ \\]\) *\\$/\1/p' "$1"; }
{ pins requirements.lock | grep -v '^pyspark=='; pins "$lock" | grep '^pyspark=='; } >"$to/constraints.txt"
cd deploy/spark
cp Dockerfile install.sh entrypoint.sh run.py "$to"
