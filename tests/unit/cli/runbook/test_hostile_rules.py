"""`triage --rules` on a folder that somebody else made: refused in words, at once."""

import os
import shutil
from pathlib import Path

import pytest

from tests.support.command_line import vdbg_env
from vdbg_env.common.resources import SHIPPED_DATA

RULES = "apiVersion: vdbg-env/v1\nkind: TriageRules\nrules:\n"
RULE = "  - {{id: r{0}, class: out-of-memory, text: [{1}], source: {{program: p, file: f, version: '1'}}{2}}}\n"
MANY = RULES + "".join(RULE.format(i, f"{i * 7919:06x}q{i}" * 5, "") for i in range(4_096))


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    (tmp_path / "server.log").write_text("CUDA out of memory\n")
    return Path(shutil.copytree(SHIPPED_DATA / "runbooks" / "triage", tmp_path / "rules"))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (MANY, "more than fit into one search"),
        (RULES + RULE.format(1, "word", ", regex: '((a{1,100}){1,100}){1,100}'"), "refused by RE2"),
        (RULES + RULE.format(1, "word", ", role: nonsense"), "1 problem found"),
    ],
    ids=["many", "large", "wrong"],
)
def test_rules_that_cannot_be_used_are_refused(rules: Path, text: str, words: str) -> None:
    (rules / "more.yaml").write_text(text)
    ran = vdbg_env("triage", "--rules", str(rules), str(rules.parent / "server.log"))
    assert ran.status == 2 and words in ran.stderr, ran.stderr


def test_a_pipe_is_not_waited_for(rules: Path) -> None:
    os.mkfifo(rules / "more.yaml")
    ran = vdbg_env("triage", "--rules", str(rules), str(rules.parent / "server.log"))
    assert ran.status == 2 and "more.yaml is not a file" in ran.stderr, ran.stderr
