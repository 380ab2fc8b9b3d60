"""The launcher of `guard`, which has the standard library alone, reads its command line as click does."""

import click
from hypothesis import given
from hypothesis import strategies as st

from vdbg_env.__main__ import _SWITCHES, _VALUED, guarded_command
from vdbg_env.cli.runbook import guard_command

OPTIONS = [option for option in guard_command.params if isinstance(option, click.Option)]
ANSWERS = {"--print-environment", "--help", "--help-all", "-h"}
WORDS = st.one_of(
    st.sampled_from(sorted({*_VALUED, *_SWITCHES, *ANSWERS, "--", "-", "-v", "--port", "--runs=x", "--core=light"})),
    st.sampled_from(["vllm", "serve", "7", "light", "1m", "", "guard"]),
)


def test_it_knows_each_option_of_guard() -> None:
    names = {name for option in OPTIONS for name in (*option.opts, *option.secondary_opts)}
    assert names - ANSWERS == _VALUED | _SWITCHES
    assert {name for option in OPTIONS if option.is_flag for name in (*option.opts, *option.secondary_opts)} == (
        _SWITCHES | ANSWERS & names
    )


@given(st.lists(WORDS, max_size=7))
def test_it_finds_the_command_that_click_finds(words: list[str]) -> None:
    context = click.Context(guard_command, info_name="guard")
    try:
        parsed, rest, order = guard_command.make_parser(context).parse_args(list(words))
    except click.UsageError:
        expected = []
    else:
        answers = any(ANSWERS & {*one.opts} for one in order)
        expected = list(parsed["argv"]) + rest if isinstance(parsed["argv"], tuple) and not answers else []
    assert guarded_command(["guard", *words]) == expected


def test_flags_of_the_program_may_stand_before_it() -> None:
    assert guarded_command(["-v", "-vv", "--verbose", "guard", "--", "true"]) == ["true"]
    for words in (["-h", "guard", "true"], ["-", "guard", "true"], ["run", "guard", "true"], ["guard"], []):
        assert guarded_command(words) == []
