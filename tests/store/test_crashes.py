"""Disasters: nothing acknowledged is lost, nothing invented, queues are what the log says.

`make crash` runs a thousand; `TAMIS_CRASH_SEED` runs one again.
"""

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from store import crashes

from tamis.store.config import StoreConfig
from tamis.store.store import Store

RUNS = int(os.environ.get("TAMIS_CRASHES", "150"))
SEED = os.environ.get("TAMIS_CRASH_SEED")


def test_a_store_survives_disasters(tmp_path: Path) -> None:
    seeds = [int(SEED)] if SEED else range(RUNS)
    kinds: Counter[str] = Counter()
    for seed in seeds:
        try:
            kinds[crashes.run(seed, tmp_path / str(seed))] += 1
        except BaseException as error:
            error.add_note(f"again with: TAMIS_CRASH_SEED={seed} make crash")
            raise
    assert SEED or set(kinds) == set(crashes.DISASTERS)


_CHILD = """
import sys
from tamis.store.config import StoreConfig
from tamis.store.store import Store
from tamis.wire.record import Draft
store = Store(sys.argv[1], StoreConfig(log_file_size=65536, queue_file_size=2000))
number = 0
while True:
    [place] = store.append([Draft(topic="T", body=b"%d" % number)])
    print(place.log_offset, place.size, number, flush=True)
    number += 1
    if number % 7 == 0:
        store.dispatch()
"""


@pytest.mark.parametrize("seed", range(int(os.environ.get("TAMIS_KILLS", "3"))))
def test_a_store_survives_kill_9(tmp_path: Path, seed: int) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", _CHILD, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    lines = [child.stdout.readline()]
    time.sleep(random.Random(seed).random() / 4)
    child.send_signal(signal.SIGKILL)
    lines += child.stdout.read().splitlines(keepends=True)
    child.stdout.close()
    child.wait()
    placed = [tuple(map(int, line.split())) for line in lines if line.endswith("\n")]
    with Store(tmp_path, StoreConfig(log_file_size=65536, queue_file_size=2000)) as store:
        for offset, _, number in placed:
            assert store.message(offset).body == b"%d" % number
        assert store.count("T", 0, 0) >= len(placed)
