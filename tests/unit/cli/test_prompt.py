"""The person's answer to a runbook's question: typed, mistyped, late, or cut off by Ctrl-C."""

import os
import sys
from collections.abc import Iterator
from threading import Timer
from typing import TextIO

import pytest

from vdbg_env.cli.runbook import AtTerminal
from vdbg_env.runbook.state import AskPerson


def question(timeout_s: float = 5) -> AskPerson:
    return AskPerson(step="ask", prompt="Go on?", choices=("yes", "no"), default="no", timeout_s=timeout_s)


@pytest.fixture
def keys(monkeypatch: pytest.MonkeyPatch) -> Iterator[TextIO]:
    """Yield what types on the standard input."""
    read, write = os.pipe()
    with os.fdopen(read) as ours, os.fdopen(write, "w") as theirs:
        monkeypatch.setattr(sys, "stdin", ours)
        yield theirs


def never() -> bool:
    return False


def test_an_answer_is_taken(keys: TextIO, capsys: pytest.CaptureFixture[str]) -> None:
    print("yes", file=keys, flush=True)
    assert AtTerminal(never).ask(question()) == "yes"
    assert "Go on?\n  yes, [no] (5 s): " in capsys.readouterr().err


def test_a_mistyped_answer_is_asked_for_again(keys: TextIO, capsys: pytest.CaptureFixture[str]) -> None:
    print("yse", file=keys, flush=True)
    # The second answer is typed after the first was read, as at a terminal.
    Timer(0.3, lambda: print("yes", file=keys, flush=True)).start()
    assert AtTerminal(never).ask(question()) == "yes"
    assert "'yse' is none of them" in capsys.readouterr().err


def test_no_answer_in_time_is_none(keys: TextIO, capsys: pytest.CaptureFixture[str]) -> None:
    assert AtTerminal(never).ask(question(timeout_s=0.1)) is None
    assert "no answer, taking no" in capsys.readouterr().err


@pytest.mark.parametrize("typed", ["\n", ""], ids=["empty", "closed"])
def test_an_empty_line_and_a_closed_terminal_are_no_answer(keys: TextIO, typed: str) -> None:
    keys.write(typed)
    keys.close()
    assert AtTerminal(never).ask(question()) is None


def test_what_is_typed_after_ctrl_c_is_no_answer(keys: TextIO, capsys: pytest.CaptureFixture[str]) -> None:
    print("yes", file=keys, flush=True)
    assert AtTerminal(lambda: True).ask(question()) is None
    assert "no answer" not in capsys.readouterr().err
