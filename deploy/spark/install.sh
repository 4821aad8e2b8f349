#!/bin/sh
# The step of the Dockerfile that installs: Tamis, Spark and what both need by pip, and Spark's
# home, the program and the entry point under PREFIX. It is run in the directory that context.sh
# made. Not the extra [spark]: that has a Java of its own, and the image has Debian's.
set -eu
prefix=${PREFIX:-/opt}
pip install --no-cache-dir --constraint constraints.txt ./tamis-*.whl pyspark pandas matplotlib
mkdir -p "$prefix/tamis"
cp run.py "$prefix/tamis/run.py"
cp entrypoint.sh "$prefix/entrypoint.sh"
chmod 755 "$prefix/entrypoint.sh"
ln -s "$(python -c 'import pyspark; print(*pyspark.__path__)')" "$prefix/spark"
