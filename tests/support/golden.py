"""Compares what the program writes with the file that holds it; `make golden` rewrites the files."""

import os
from pathlib import Path

GOLDEN = Path(__file__).parents[1] / "golden"


def rewriting() -> bool:
    """Return whether `make golden` runs: what the program does now is then written down instead of compared."""
    return os.environ.get("GOLDEN") == "rewrite"


def assert_golden(name: str, text: str) -> None:
    """Fail unless `text` equals tests/golden/`name`; with GOLDEN=rewrite in the environment, write it instead."""
    assert_file(GOLDEN / name, text)


def assert_file(path: Path, text: str) -> None:
    """Do the same for any file that the program itself makes: a page of the docs, a schema next to what follows it."""
    if rewriting():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return
    assert path.exists(), f"{path} is missing: run `make golden`, read it, commit it"
    assert text == path.read_text(), f"differs from {path}: if that is meant, run `make golden` and read the diff"
