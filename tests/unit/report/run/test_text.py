"""The terminal and Markdown writers put the fault first and let no text of the workload act as markup."""

import dataclasses
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support import reports
from tests.support.golden import assert_golden
from vdbg_env.common.console import duration, size_text
from vdbg_env.evidence.finding import Ended, EndedBy, NextStep
from vdbg_env.record.run_directory import GUARD
from vdbg_env.report import as_terminal, pages
from vdbg_env.report.model import Report, ended

NAMED = {"full": reports.FULL, "hang": reports.HANG, "bare": reports.BARE}
HOSTILE = "\x1b[2J\r\n| # @nvidia #1 <script>alert(1)</script> ```\n</details> `x` [a](http://b)\u202e"


@pytest.mark.parametrize("name", NAMED)
def test_the_terminal_shows(name: str) -> None:
    assert_golden(f"report/run_{name}.txt", as_terminal.render(NAMED[name]))


@pytest.mark.parametrize("name", NAMED)
def test_markdown_reads(name: str) -> None:
    assert_golden(f"report/run_{name}.md", pages.as_markdown(NAMED[name]))


def test_what_guard_always_sets_is_not_told_again_nor_a_name_of_a_thousand_characters_whole() -> None:
    long = "k" + "a" * 998 + "z"
    step = dataclasses.replace(reports.STEPS[4], message=f"Warp Assert in {long}", env_change={"CUDA_X": "1"})
    tried = dataclasses.replace(reports.FULL, steps=(*reports.STEPS[:4], step))
    assert "CUDA_X=1" in as_terminal.render(tried)
    shown = as_terminal.render(dataclasses.replace(tried, runbook=GUARD))
    assert "CUDA_X=1" not in shown and "what guard sets: vdbg-env guard --print-environment" in shown
    assert long not in shown and "Warp Assert in" in shown and "az" in shown


def hostile(text: str) -> Report:
    step = dataclasses.replace(
        reports.STEPS[4],
        message=text,
        notes=(text,),
        argv=(text,),
        env={"X": text},
        evidence=(dataclasses.replace(reports.IMA, text=text),),
    )
    found = dataclasses.replace(reports.FAULT, message=text, kernel=text)
    return dataclasses.replace(
        reports.FULL,
        title=text,
        steps=(step,),
        findings=(found, found),
        environment={text: text},
        next_steps=(NextStep(text=text, command=text),),
        notes=(text,),
        workload=(text,),
    )


def test_hostile_text_moves_no_cursor() -> None:
    shown = as_terminal.render(hostile(HOSTILE))
    assert all(c.isprintable() or c == "\n" for c in shown)


def test_without_colour_there_is_no_escape_and_with_colour_the_words_are_the_same() -> None:
    plain, coloured = as_terminal.render(reports.FULL), as_terminal.render(reports.FULL, colour=True)
    assert "\x1b" not in plain and "\x1b[1;31m" in coloured
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == plain


def outside_code(markdown: str) -> str:
    """Return what a Markdown reader would take for prose: blocks and spans of code taken out."""
    kept, fence = [], ""
    for line in markdown.splitlines():
        opened = re.match(r"`{3,}", line)
        if fence:
            fence = "" if line.strip() == fence else fence
        elif opened:
            fence = opened.group()
        else:
            kept.append(line)
    assert not fence, "a fenced block is never closed"
    return re.sub(r"(`+)(?!`).*?(?<!`)\1(?!`)", "", "\n".join(kept))


def test_hostile_text_is_no_markup_mentions_nobody_and_closes_nothing() -> None:
    markdown = pages.as_markdown(hostile(HOSTILE))
    prose = outside_code(markdown.replace("\\`", ""))
    assert (
        "<script" not in prose
        and "@nvidia" not in prose
        and "#1 " not in prose
        and not re.search(r"(?<!\\)\]\(", prose)
    )
    assert prose.count("<details>") == prose.count("</details>")
    assert "\x1b" not in markdown and "\u202e" not in markdown


@given(st.text())
def test_no_text_breaks_out_of_code_or_prose(text: str) -> None:
    prose = outside_code(pages.as_markdown(hostile(text)).replace("\\`", ""))
    assert prose.count("<details>") == prose.count("</details>") > 0
    terminal = as_terminal.render(hostile(text))
    assert all(c.isprintable() or c == "\n" for c in terminal)


def test_table_rows_keep_their_columns_whatever_stands_in_a_cell() -> None:
    markdown = pages.as_markdown(hostile("a|b`|"))
    rows = [line for line in markdown.splitlines() if line.startswith("| ")]
    assert rows and all(len(re.findall(r"(?<!\\)\|", row)) in {3, 5} for row in rows)


def test_the_command_line_can_be_typed_again() -> None:
    assert next(pages.command(reports.STEPS[4])) == "env -u PYTHONHASHSEED"
    assert next(pages.command(reports.STEPS[2])) == "CUDA_LAUNCH_BLOCKING=1"


def test_figures_are_said_as_people_say_them() -> None:
    assert [duration(s) for s in (0.04, 42, 478, 10_920)] == ["0.0 s", "42 s", "7 min 58 s", "3 h 02 min"]
    assert [size_text(n) for n in (12, 3_250_586, 1 << 50)] == ["12 B", "3.1 MiB", "1024.0 TiB"]


@pytest.mark.parametrize("by", EndedBy)
def test_every_way_to_end_has_words(by: EndedBy) -> None:
    assert ended(Ended(by=by, code=3 if by is EndedBy.EXIT else None)).strip()


def test_a_narrow_terminal_gets_lines_that_fit_but_for_single_words_commands_and_source() -> None:
    lines = as_terminal.render(reports.FULL, width=40).splitlines()
    whole = {line for line in lines if " | " in line or "$ " in line}
    assert all(len(line) <= 40 or len(line.split()) <= 3 for line in lines if line not in whole)
    assert "  preflight: pass, 1.2 s" in lines
