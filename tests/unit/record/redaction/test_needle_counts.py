"""A needle that nearly every line of a log has counts only where a value follows it; none of those is missed."""

import sys

import pytest

from vdbg_env.record.redaction.redaction import Redactor
from vdbg_env.record.redaction.secrets import SecretFinder
from vdbg_env.record.redaction.whole_text import WholeText

VALUE = b"s3cr3tvalue99"


@pytest.mark.parametrize(
    "line",
    [
        b"token=%s",
        b"token : %s",
        b"token    = %s",
        b'"token": "%s"',
        b'\\"token\\": \\"%s\\"',
        b"tokens['token'] => '%s'",
        b"--hf-token %s",
        b"'--hf-token', '%s'",
        b"--hf-token\n%s",
        b"token =\n%s",
        b"token\n= %s",
        b"token \n = %s",
        b'"--api-key",\n  "%s"',
        b"--api-key\t%s",
        b"--" + b"a-" * 28 + b"key-token %s",
        b"API_KEY=%s",
        b"apikey: %s",
        b"access-key = %s",
        b"private_key=%s",
        b"pwd = %s",
        b'"pwd"  :  "%s"',
        b"123 tokens/s, token=%s",
    ],
)
@pytest.mark.parametrize("library", [True, False], ids=["with the library", "standard library alone"])
def test_a_value_is_found_wherever_its_name_gives_it_away(
    line: bytes, library: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not library:
        monkeypatch.setitem(sys.modules, "ahocorasick_rs", None)
    assert VALUE not in Redactor().data(line % VALUE + b" and more\n")


@pytest.mark.parametrize("library", [True, False], ids=["with the library", "standard library alone"])
def test_lines_that_only_speak_of_tokens_and_keys_are_not_looked_at_again(
    library: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of these would cost a search by a pattern, on every line: 40 MB/s and not 300."""
    if not library:
        monkeypatch.setitem(sys.modules, "ahocorasick_rs", None)
    finder = SecretFinder()
    lines = b"12.3 tokens/s, key cache usage: 4.5%, 17 tokens generated, max_tokens 512, token ids [1, 2]\n"
    assert list(finder._search.find(lines, WholeText(lines)).needles) == []
