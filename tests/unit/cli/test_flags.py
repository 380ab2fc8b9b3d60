"""An option is declared once, as the field that it fills: click gets from its type what the type says."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import click
import pytest
from click.testing import CliRunner

from vdbg_env.common.flags import Flag, Sectioned, flag, takes


@dataclass(frozen=True, kw_only=True)
class Flags:
    kind: Literal["a", "b"] = flag(default="a", help="One of two.")
    names: tuple[str, ...] = flag("--name", "-n", default=(), help="Repeatable.")
    jobs: int | None = flag(between=(1, 4), help="A number.", section="Numbers")
    folder: Path | None = flag(path={"file_okay": False}, help="A folder.")
    loud: bool = flag("--loud", "-l", default=False, help="A switch.")
    guard: bool | None = flag("--guard/--no-guard", help="Given or not.")
    debug: Literal["lines", "all"] = flag(
        "--lines", default="lines", help="The default.", flag_value="lines",
        also=Flag(names=("--everything",), help="The other.", settings={"flag_value": "all"}),
    )  # fmt: skip


SEEN: list[tuple[str, Flags]] = []


@click.command(cls=Sectioned, sections=("Numbers",))
@takes(flags=Flags)
@click.argument("word")
def command(word: str, flags: Flags) -> None:
    SEEN.append((word, flags))


def given(*argv: str) -> tuple[str, Flags]:
    ran = CliRunner().invoke(command, argv, catch_exceptions=False)
    assert ran.exit_code == 0, ran.output
    return SEEN.pop()


def test_without_options_the_defaults_of_the_fields_hold() -> None:
    assert given("x") == ("x", Flags())


def test_each_option_fills_its_field() -> None:
    argv = "--kind b -n one --name two --jobs 4 --folder /tmp -l --no-guard --everything x"
    filled = Flags(
        kind="b", names=("one", "two"), jobs=4, folder=Path("/tmp"), loud=True, guard=False, debug="all"
    )  # fmt: skip
    assert given(*argv.split()) == ("x", filled)


@pytest.mark.parametrize("wrong", ["--kind c", "--jobs 5", "--folder /etc/hostname", "--jobs x"])
def test_a_value_outside_of_the_type_is_refused(wrong: str) -> None:
    ran = CliRunner().invoke(command, [*wrong.split(), "x"])
    assert ran.exit_code == 2 and "Invalid value" in ran.output


def test_help_lists_an_option_under_its_section() -> None:
    options, _, numbers = CliRunner().invoke(command, ["--help"]).output.partition("Numbers:")
    assert "--jobs INTEGER RANGE" in numbers and "--jobs" not in options and "--kind [a|b]" in options
