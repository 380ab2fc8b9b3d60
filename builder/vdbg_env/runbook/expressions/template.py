"""Fill `${{ expression }}` in texts and data; a value that is one expression and nothing else keeps its type."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from vdbg_env.runbook.expressions.cel import BadExpression, ExpressionFailed, Names, Value, compile_expression
from vdbg_env.runbook.model import Data

DEFERRED = frozenset({"rank.dir", "rank.number", "rank.host"})
"""Known only when a process is placed; `vdbg_env.runbook.invocation.placed` fills them in."""


@dataclass(frozen=True, kw_only=True)
class Piece:
    """Literal text, or the text of one expression with its offset (of its first character) in the whole."""

    text: str
    offset: int
    is_expression: bool

    @property
    def deferred(self) -> bool:
        """Whether this is one of the names that are filled in per rank."""
        return self.is_expression and self.text.strip() in DEFERRED


def pieces(text: str) -> tuple[Piece, ...]:
    """Split a text at its `${{ }}`; `$${{` stands for a literal `${{`. Raises BadExpression when one never ends."""
    return tuple(_pieces(text))


def is_template(text: str) -> bool:
    """Say whether a text holds anything that may have to be filled in."""
    return "${{" in text


def check(text: str, names: Names) -> None:
    """Compile every expression in a text; raises BadExpression with the offset in the whole text."""
    for piece in pieces(text):
        if not piece.is_expression or piece.deferred:
            continue
        try:
            compile_expression(piece.text, names)
        except BadExpression as error:
            raise BadExpression(error.what, offset=piece.offset + error.offset, suggestion=error.suggestion) from None


def fill(value: Data, names: Names, values: Mapping[str, Value]) -> Data:
    """Return the value with every `${{ }}` in it filled; raises ExpressionFailed."""
    match value:
        case str():
            return _fill_text(value, names, values)
        case list():
            return [fill(x, names, values) for x in value]
        case dict():
            return {key: fill(x, names, values) for key, x in value.items()}
        case _:
            return value


def fill_text(text: str, names: Names, values: Mapping[str, Value]) -> str:
    """Return the text with every `${{ }}` filled, as text whatever the type; raises ExpressionFailed."""
    return as_text(_fill_text(text, names, values))


def as_text(value: Data) -> str:
    """Return a value as text in a command line: true and false in small letters, lists with blanks between."""
    match value:
        case None:
            return ""
        case bool():
            return "true" if value else "false"
        case list():
            return " ".join(as_text(x) for x in value)
        case dict():
            return ", ".join(f"{key}: {as_text(x)}" for key, x in sorted(value.items()))
        case _:
            return str(value)


def _fill_text(text: str, names: Names, values: Mapping[str, Value]) -> Data:
    if "${{" not in text:
        return text
    parts = pieces(text)
    if len(parts) == 1 and parts[0].is_expression and not parts[0].deferred:
        return _value(parts[0], names, values)
    return "".join(
        _literal(part) if not part.is_expression or part.deferred else as_text(_value(part, names, values))
        for part in parts
    )


def _literal(part: Piece) -> str:
    return f"${{{{ {part.text.strip()} }}}}" if part.is_expression else part.text


def _value(part: Piece, names: Names, values: Mapping[str, Value]) -> Data:
    try:
        return compile_expression(part.text, names).evaluate(values)
    except BadExpression as error:  # lint compiles them all; only a caller that skipped it comes here
        raise ExpressionFailed(f"{part.text}: {error.what}") from None


def _pieces(text: str) -> Iterator[Piece]:
    literal, position = [""], 0
    while (start := text.find("${{", position)) >= 0:
        if start > position - 1 and text[start - 1 : start] == "$" and start - 1 >= position:
            literal.append(text[position : start - 1] + "${{")
            position = start + 3
            continue
        literal.append(text[position:start])
        if any(literal):
            yield Piece(text="".join(literal), offset=position, is_expression=False)
        end = _end(text, start + 3)
        yield Piece(text=text[start + 3 : end], offset=start + 3, is_expression=True)
        literal, position = [""], end + 2
    rest = "".join(literal) + text[position:]
    if rest:
        yield Piece(text=rest, offset=position, is_expression=False)


def _end(text: str, start: int) -> int:
    """Return the place of the closing braces: outside of quotes, and after the braces of CEL's own maps."""
    depth, quote, at = 0, "", start
    while at < len(text):
        character = text[at]
        if quote:
            if character == "\\":
                at += 1
            elif character == quote:
                quote = ""
        elif character in "'\"":
            quote = character
        elif character == "{":
            depth += 1
        elif character == "}":
            if depth == 0 and text.startswith("}}", at):
                return at
            depth -= 1
        at += 1
    raise BadExpression("'${{' is never closed by '}}'", offset=start - 3)
