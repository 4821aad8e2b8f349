"""The recorded verdicts in `corpus/`."""

import gzip
import json
from pathlib import Path
from typing import Any

CORPUS = Path(__file__).parent / "corpus"


def load(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text(name).splitlines()]


def text(name: str) -> str:
    with gzip.open(CORPUS / f"{name}.jsonl.gz", "rt", encoding="ascii") as file:
        return file.read()
