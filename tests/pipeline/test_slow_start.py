"""A machine that is too busy to start Python within the 10 seconds that Spark waits for it."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

from sparkling import create_topic, send_all

from tamis.message import Message
from tamis.testing import LocalCluster

# The first process of a streaming source starts too late, the others do as they should.
SLOW_ONCE = """\
#!/bin/sh
case "$*" in *python_streaming_source_runner*) mkdir {mark} 2>/dev/null && sleep 11 ;; esac
exec {python} "$@"
"""


def test_a_pipeline_whose_python_starts_too_late_is_started_again(
    local_cluster: LocalCluster, tmp_path: Path
) -> None:
    create_topic(local_cluster, "Late")
    send_all(local_cluster, [Message("Late", str(n), tags="A") for n in range(10)])
    python, mark = tmp_path / "python", tmp_path / "was-slow"
    python.write_text(
        SLOW_ONCE.format(mark=shlex.quote(str(mark)), python=shlex.quote(sys.executable))
    )
    python.chmod(0o755)
    file = tmp_path / "late.toml"
    file.write_text(
        f'[source]\nnameserver = "{local_cluster.nameserver}"\ntopic = "Late"\n'
        '[[subscription]]\ngroup = "a"\ntags = "A"\n'
        'sink = { format = "parquet", path = "out" }\n'
    )
    done = subprocess.run(
        [sys.executable, "-m", "tamis", "pipeline", "run", str(file), "--master", "local[2]"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYSPARK_PYTHON": str(python), "PYSPARK_DRIVER_PYTHON": str(python)},
        timeout=600,
    )
    assert mark.exists()
    assert done.returncode == 0, done.stderr
    assert "did not start in time on this busy machine: retrying" in done.stderr
    assert "route done: 10 messages" in done.stdout + done.stderr
