"""What others put into a text reaches a terminal as text, in every command that prints some of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.command_line import vdbg_env
from vdbg_env.common.console import printable_json

NASTY = "\x1b]0;title\x07\x1b[2J\r\x9b31m\u202eforged"


def test_a_document_stays_the_same_value_and_moves_no_cursor() -> None:
    value = {NASTY: [NASTY, "\udc80", "\U000e0001", "äé€😀"]}
    text = printable_json(json.dumps(value, indent=1, ensure_ascii=False))
    assert json.loads(text) == value
    assert all(line.isprintable() for line in text.split("\n"))
    assert "äé€😀" in text


@pytest.fixture
def nasty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a runbook, a profile and a log whose texts and names would move the cursor."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    assert vdbg_env("runbooks", "new", "nasty", ".").status == 0
    text = Path("nasty.yaml").read_text()
    for harmless in ("What fails, in a few words", "Does it fail unchanged?", "it fails at the launch"):
        assert harmless in text
        text = text.replace(harmless, "HERE")
    escaped = json.dumps(NASTY)[1:-1]
    text = text.replace("title: HERE", f'title: "{escaped}"').replace("name: HERE", f'name: "{escaped}"')
    Path("nasty.yaml").write_text(text.replace('"HERE', f'"{escaped}'))
    assert vdbg_env("images", "new", "nasty").status == 0
    (profile,) = Path("config").rglob("nasty.yaml")
    lines = profile.read_text().split("\n")
    place = next(n for n, line in enumerate(lines) if line.startswith("summary:"))
    lines[place] = f'summary: "{escaped}"'
    profile.write_text("\n".join(lines))
    Path("logs").mkdir()
    Path("logs", f"{NASTY}.log").write_text(f"{NASTY}\nCUDA error: an illegal memory access was encountered\n")
    Path("logs", "not UTF-8 \udc80.log").write_text("CUDA error: an illegal memory access was encountered\n")
    return tmp_path


@pytest.mark.parametrize(
    "words",
    [
        "runbooks show ./nasty.yaml",
        "runbooks show --json ./nasty.yaml",
        "runbooks explain ./nasty.yaml",
        "runbooks explain ./nasty.yaml baseline",
        "runbooks lint ./nasty.yaml",
        "runbooks list",
        "runbook --plan -f nasty.yaml nasty -- true",
        "runbook --plan --json -f nasty.yaml nasty -- true",
        "images list",
        "images list --json",
        "triage logs",
        "triage --json logs",
    ],
)
def test_no_command_prints_what_moves_the_cursor(nasty: Path, words: str) -> None:
    ran = vdbg_env(*words.split())
    assert ran.status in {0, 3}, ran.stderr
    assert ran.stdout
    for line in (ran.stdout + ran.stderr).split("\n"):
        assert line.isprintable(), repr(line)
