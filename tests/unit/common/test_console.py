"""Colour is for a terminal that shows it, and for users who did not switch it off."""

import io

import pytest

from vdbg_env.common.console import shortened, shows_colour


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("environment", "shown"),
    [({}, True), ({"TERM": "dumb"}, False), ({"NO_COLOR": "1"}, False), ({"NO_COLOR": ""}, True)],
)
def test_colour_follows_the_terminal(monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], shown: bool) -> None:
    for name, value in {"TERM": "xterm-256color", "NO_COLOR": "", **environment}.items():
        monkeypatch.setenv(name, value)
    assert shows_colour(Terminal()) is shown
    assert not shows_colour(io.StringIO())


def test_a_name_without_end_is_shown_without_its_middle() -> None:
    assert shortened("k" + "a" * 998 + "z") == f"k{'a' * 199} … {'a' * 99}z"
    assert shortened("k" * 300) == "k" * 300
