"""Every claim of older documents is met: stale advice recognised, answered and given by nothing that is shipped."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.triage import triage_bytes
from vdbg_env.evidence.knowledge import shipped_knowledge

ROOT = Path(__file__).parents[4]
ROWS: list[dict[str, Any]] = yaml.safe_load((ROOT / "tests" / "data" / "truth-table.yaml").read_text())["rows"]
CLAIMS = 49

SHIPPED = [
    path
    for folder in ("runbooks", "images", "templates", "docs", "builder", "README.md")
    for path in ([ROOT / folder] if folder.endswith(".md") else sorted((ROOT / folder).rglob("*")))
    if path.suffix in {".yaml", ".md", ".py", ".jinja", ".j2", ".sh"} and "knowledge" not in path.parts
]
# A line that names what is stale in order to say so is no advice.
SAYS_SO = re.compile(
    r"\b(?:gone|removed|stale|never|no longer|instead|unlike|silently|ignored|deprecated|refused?|renamed)\b",
    re.IGNORECASE,
)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: str(row["says"])[:60])
def test_a_row_is_met(row: dict[str, Any]) -> None:
    knowledge = shipped_knowledge()
    if "advice" in row:
        judged = [j for j in knowledge.judge_text(row["text"]) if j.name == row["advice"]]
        assert judged
        assert judged[0].replaced_by
        assert judged[0].source
    elif "name" in row:
        said = knowledge.judge_name(row["name"], "0.33.0")
        assert said.status == row["status"]
        assert said.source
        assert said.replaced_by or row["status"] in {"current", "caution"}
    elif "holds" in row:
        assert knowledge.judge_text(row["text"]) == ()
    else:
        assert {triage_bytes(row[age].encode() + b"\n").failure.name for age in ("old", "new")} == {row["triage"]}


def test_no_claim_is_left_out() -> None:
    assert {row["claim"] for row in ROWS} == set(range(1, CLAIMS + 1))


@pytest.mark.parametrize("path", SHIPPED, ids=lambda p: str(p.relative_to(ROOT)))
def test_nothing_shipped_gives_stale_advice(path: Path) -> None:
    knowledge = shipped_knowledge()
    stale = {name for name, row in knowledge.rows.items() if row.never or row.until}
    lines = path.read_text().splitlines()
    wrong = [f"{path.name}:{j.line}: {j.name}" for j in knowledge.judge_text(path.read_text()) if j.level == "error"]
    for number, line in enumerate(lines, 1):
        words = set(re.findall(r"--[a-z][a-z-]+|[A-Z][A-Z0-9_]{5,}", line))
        wrong += [f"{path.name}:{number}: {name}" for name in sorted(words & stale)]
    wrong = [w for w in wrong if not SAYS_SO.search(lines[int(w.split(":")[1]) - 1])]
    assert wrong == []
