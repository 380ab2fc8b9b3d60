"""Errors say what happened, the usual cause and the next thing to type, on lines nobody can forge."""

import os
import subprocess
from pathlib import Path

import pytest

from vdbg_env.common import console
from vdbg_env.common.errors import BadInput, quoted
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


@pytest.mark.parametrize(
    "name", [b"plain", b"two words", b"it's $HOME", b"a\nb\\'c", b"caf\xe9.log", "ж\u202e".encode()]
)
def test_a_word_of_a_command_can_be_typed_as_it_is_shown(name: bytes) -> None:
    shown = console.printable(quoted(os.fsdecode(name)))
    assert shown.isprintable()
    ran = subprocess.run(["bash", "-c", f"printf %s {shown}"], capture_output=True, check=True)
    assert ran.stdout == name


@pytest.mark.parametrize("name", ["-dash/c.nvcudmp", "-", "-a\nb"])
def test_a_name_that_starts_as_a_flag_does_is_read_as_a_file(name: str, tmp_path: Path) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("read")
    ran = subprocess.run(["bash", "-c", f"cat {quoted(name)}"], cwd=tmp_path, input=b"", stdout=subprocess.PIPE)
    assert ran.stdout == b"read"


def test_a_byte_that_is_no_utf_8_is_shown_as_that_byte() -> None:
    assert console.printable(os.fsdecode(b"caf\xe9.log")) == "caf\\xe9.log"
