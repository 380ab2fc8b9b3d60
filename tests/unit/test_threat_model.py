"""Every claim of the threat model names a test that exists."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "13-threat-model.md").read_text()


def test_every_claim_has_its_test() -> None:
    rows = [row for row in PAGE.splitlines() if row.startswith("| ") and "| test |" not in row and "::" in row]
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PAGE)
    assert len(named) == len(rows) >= 25
    for path, name in named:
        functions = {node.name for node in ast.walk(ast.parse((ROOT / path).read_text())) if hasattr(node, "name")}
        assert name in functions, f"{path} has no {name}"


def test_every_place_that_a_page_names_is_one() -> None:
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    named = {name for page in pages for name in re.findall(r"`[^`\n]*--on (\w+)", page.read_text())}
    assert named - {"k8s"} <= {"local", "docker", "slurm"}, "k8s is gone, as the pages say"
