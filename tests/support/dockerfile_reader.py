"""Reads a Dockerfile as Docker does, written from its documented rules and apart from the program's writer.

Only what decides whether a value can break out is read: comments, continuations, keywords, the words of ENV, LABEL and
ARG with their quotes, escapes and `$` expansions, the JSON form, heredocs, and the words of RUN as the shell has them.
"""

import json
import re
import shlex
from dataclasses import dataclass


@dataclass(frozen=True)
class Read:
    """One instruction: its keyword, and its arguments as words."""

    keyword: str
    words: tuple[str, ...]


def read_dockerfile(text: str) -> list[Read]:
    """Return the instructions of a Dockerfile; raises AssertionError for anything Docker would read otherwise."""
    return [_instruction(line) for line in _logical_lines(text)]


def _logical_lines(text: str) -> list[str]:
    lines: list[str] = []
    open_line: str | None = None
    for number, line in enumerate(re.split(r"\r?\n", text)):
        assert not (number == 0 and re.match(r"#\s*\w+\s*=", line)), "a parser directive"
        if line.lstrip().startswith("#") or not line.strip():  # dropped inside of a continued line too
            continue
        joined = line if open_line is None else open_line + line
        found = re.fullmatch(r"(.*)\\[ \t]*", joined, re.DOTALL)
        open_line = found[1] if found else None
        if not found:
            lines.append(joined.strip())
    assert open_line is None, "the last line goes on"
    return lines


def _instruction(line: str) -> Read:
    keyword, _, rest = line.partition(" ")
    assert keyword in {"FROM", "ARG", "ENV", "LABEL", "WORKDIR", "COPY", "RUN", "ENTRYPOINT", "CMD"}, line
    match keyword:
        case "ENV" | "LABEL" | "ARG":
            return Read(keyword, tuple(_docker_words(rest)))
        case "COPY" | "ENTRYPOINT" | "CMD":
            return Read(keyword, tuple(json.loads(rest)))
        case "RUN":
            return Read(keyword, tuple(_shell_words(rest)))
        case _:
            assert "$" not in rest
            return Read(keyword, tuple(rest.split()))


def _docker_words(text: str) -> list[str]:
    """Split as Docker's lexer: blanks end a word outside of quotes; a dollar that is not escaped would expand."""
    words: list[str] = []
    word, quote, at = "", "", 0
    while at < len(text):
        character = text[at]
        if quote == "'":
            quote, word = ("", word) if character == "'" else (quote, word + character)
        elif character == "\\" and at + 1 < len(text) and (not quote or text[at + 1] in '"$\\'):
            at += 1
            word += text[at]
        elif character == "$":
            raise AssertionError(f"Docker would expand {text[at:]}")
        elif character in "'\"" and quote in ("", character):
            quote = "" if quote else character
        elif character.isspace() and not quote:
            words, word = ([*words, word], "") if word else (words, word)
        else:
            word += character
        at += 1
    assert not quote, "a quote is left open"
    return [*words, word] if word else words


def _shell_words(text: str) -> list[str]:
    assert not text.startswith("["), "the exec form"
    unquoted = re.sub(r"""\\.|'[^']*'|"(?:\\.|[^"\\])*\"""", "_", text)
    heredocs = [w for w in unquoted.split() if re.fullmatch(r"\d*<<-?[^<]*", w)]
    assert not heredocs, "newer builders read this as a heredoc"
    lexer = shlex.shlex(text, posix=True, punctuation_chars=True)
    lexer.commenters = ""
    lexer.whitespace_split = True
    return list(lexer)
