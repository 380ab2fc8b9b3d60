"""Compares what the user sees with the file that holds it; `make golden` rewrites the files."""

import os
from pathlib import Path

GOLDEN = Path(__file__).parents[1] / "golden"


def assert_golden(name: str, text: str) -> None:
    """Fail unless `text` equals tests/golden/`name`; with GOLDEN=rewrite in the environment, write it instead."""
    path = GOLDEN / name
    if os.environ.get("GOLDEN") == "rewrite":
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return
    assert path.exists(), f"{path} is missing: run `make golden`, read it, commit it"
    assert text == path.read_text(), f"differs from {path}: if that is meant, run `make golden` and read the diff"
