"""What pages name exists."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_place_that_a_page_names_is_one() -> None:
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    named = {name for page in pages for name in re.findall(r"`[^`\n]*--on (\w+)", page.read_text())}
    assert named - {"k8s"} <= {"local", "docker", "slurm"}, "k8s is gone, as the pages say"
