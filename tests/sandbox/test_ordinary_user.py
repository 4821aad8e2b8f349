"""Filters that mean harm are contained by a server that is not root, too."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.skipif(os.getuid() != 0, reason="whoever runs the tests is an ordinary user")
def test_all_hostile_filters_are_contained_by_an_ordinary_user() -> None:
    here = Path(__file__)
    done = subprocess.run(
        [
            *(sys.executable, here.with_name("as_nobody.py"), "-m", "pytest", "-q", "-x"),
            *("-p", "no:cacheprovider", here.with_name("test_hostile_filters.py")),
        ],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^\d{3} passed", done.stdout, re.MULTILINE), done.stdout
