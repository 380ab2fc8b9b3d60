"""Errors say what happened, the usual cause and the next thing to type, on lines nobody can forge."""

from vdbg_env.common import console
from vdbg_env.common.errors import BadInput
from vdbg_env.common.yaml_source import Complaint


def test_an_error_reads_as_advice() -> None:
    error = BadInput(
        "no such profile 'x'", cause="a typing mistake", next_step="vdbg-env images list", details=("a", "b")
    )
    text = "error: no such profile 'x'\n  a\n  b\n  usual cause: a typing mistake\n  try: vdbg-env images list"
    assert console.error_text(error) == text


def test_a_newline_in_the_input_forges_no_line() -> None:
    assert console.error_text(BadInput("no image 'a\nerror: b\x1b[2J'")) == "error: no image 'a\\nerror: b\\x1b[2J'"


def test_the_caret_stands_under_the_column() -> None:
    complaint = Complaint(file="f", line=3, column=5, what="wrong", excerpt="\tab: c", suggestion="d")
    assert complaint.lines() == ("f:3:5: wrong (did you mean 'd'?)", "     ab: c", "        ^")
