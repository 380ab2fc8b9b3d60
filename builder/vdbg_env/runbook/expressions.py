"""Compile and evaluate the conditions of a runbook: CEL, with declared names only.

CEL (Common Expression Language, cel-spec) has no statements, no loops without a bound and no way out: an expression
sees the values it is given and nothing of Python. The engine under it is Google's C++ one, which refuses deep nesting,
limits the iterations of a comprehension and matches patterns by RE2. All of it is used here and nowhere else.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import Any

from cel_expr_python import cel

from vdbg_env.common.console import nearest
from vdbg_env.runbook.model import Data

MAX_LENGTH = 4096  # characters of one expression

Value = Data | Mapping[str, Data]
"""What a root name means; a mapping may make its members when they are asked for."""

Names = Mapping[str, "Names | None"]
"""What an expression may name: root -> members, and so on down; None where everything below is allowed."""

_NamedPath = tuple[str, list[tuple[str, int]]]  # a dotted path: its root, and each part with its offset

_TOKEN = re.compile(
    r"""(?P<text>[rRbB]{0,2}(?:'{3}.*?'{3}|"{3}.*?"{3}|'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"))"""
    r"""|(?P<path>[A-Za-z_]\w*(?:\s*\.\s*[A-Za-z_]\w*)*)(?P<call>\s*\()?|(?P<number>\d[\w.]*)|(?P<dot>\.\s*[A-Za-z_]\w*)|.""",
    re.DOTALL,
)
_PLACE = re.compile(r"ERROR: <input>:(\d+):(\d+): ([^\n]*)")
_UNREAD = re.compile(r"Syntax error: (?:mismatched|extraneous) input '(.*)' expecting ")
_UNDECLARED = re.compile(r"undeclared reference to '([^']+)'")


class BadExpression(Exception):
    """An expression that does not compile; `offset` counts characters from its start."""

    def __init__(self, what: str, *, offset: int = 0, suggestion: str | None = None) -> None:
        super().__init__(what)
        self.what = what
        self.offset = offset
        self.suggestion = suggestion


class ExpressionFailed(Exception):
    """An expression that compiled could not be evaluated with these values (a missing member, a wrong type)."""


@dataclass(frozen=True, kw_only=True)
class Expression:
    """A compiled expression; `gives` is CEL's name of its type, DYN where only the values decide.

    `needs` are the roots it names, each with the members it names, or None where it needs the root as a whole.
    """

    text: str
    gives: str
    needs: Mapping[str, frozenset[str] | None]
    program: Any

    def evaluate(self, values: Mapping[str, Value]) -> Data:
        """Return the value of the expression; raises ExpressionFailed."""
        try:
            result = self.program.eval(data={root: _part(values[root], some) for root, some in self.needs.items()})
        except (RuntimeError, KeyError, TypeError, ValueError, UnicodeError) as error:
            raise ExpressionFailed(f"{self.text}: {error}") from None
        if str(result.type()) == "ERROR":
            raise ExpressionFailed(f"{self.text}: {_reason(str(result.value()))}")
        return _plain(result.plain_value())

    def holds(self, values: Mapping[str, Value]) -> bool:
        """Return the value of a condition; raises ExpressionFailed when it is not true or false."""
        value = self.evaluate(values)
        if not isinstance(value, bool):
            raise ExpressionFailed(f"{self.text}: gives {value!r}, not true or false")
        return value


def compile_expression(text: str, names: Names) -> Expression:
    """Compile one expression that may use `names` only; raises BadExpression with the place and the nearest name."""
    if len(text) > MAX_LENGTH:
        raise BadExpression(f"an expression of {len(text)} characters; at most {MAX_LENGTH} are read")
    try:
        program = _program(text, tuple(sorted(names)))
    except RuntimeError as error:
        raise _bad_expression(text, str(error), names) from None
    except (UnicodeError, ValueError) as error:
        raise BadExpression(f"not an expression: {error}") from None
    paths = list(_paths(text))
    _check_members(paths, names)
    return Expression(text=text, gives=str(program.return_type()), needs=_needs(paths, names), program=program)


def compile_condition(text: str, names: Names) -> Expression:
    """Compile an expression that must be true or false; raises BadExpression."""
    expression = compile_expression(text, names)
    if expression.gives not in {"BOOL", "DYN"}:
        raise BadExpression(f"a condition must be true or false, this one gives {expression.gives}")
    return expression


def conjuncts(text: str) -> list[str]:
    """Return the parts that `&&` joins at the top of an expression; the whole of it where something else does."""
    parts, start, depth, before = [], 0, 0, ""
    for token in _TOKEN.finditer(text):
        word = token[0]
        depth += word in {"(", "[", "{"} or token["call"] is not None
        depth -= word in {")", "]", "}"}
        if depth == 0 and word in {"|", "?"}:
            return [text.strip()]
        if depth == 0 and before == word == "&":
            parts.append(text[start : token.start() - 1].strip())
            start = token.end()
        before = word
    return [*parts, text[start:].strip()]


def named_paths(text: str, names: Names) -> list[str]:
    """Return every dotted path below `names` in an expression, each once, less the methods called on it."""
    return list(dict.fromkeys(".".join(name for name, _ in path) for root, path in _paths(text) if root in names))


@lru_cache(maxsize=64)
def _environment(roots: tuple[str, ...]) -> Any:
    return cel.NewEnv(variables=dict.fromkeys(roots, cel.Type.DYN))


def _bad_expression(text: str, message: str, names: Names) -> BadExpression:
    found = _PLACE.search(message)
    if not found:
        return BadExpression(_reason(message))
    line, column, what = int(found[1]), int(found[2]), found[3]
    what = what.removesuffix(" [INVALID_ARGUMENT]").replace(" (in container '')", "")
    if unread := _UNREAD.match(what):
        what = "the expression ends too early" if unread[1] == "<EOF>" else f"{unread[1]!r} has no meaning here"
    offset = sum(len(x) + 1 for x in text.split("\n")[: max(0, line - 1)]) + max(0, column - 1)
    undeclared = _UNDECLARED.search(what)
    if undeclared:
        root = undeclared[1].split(".")[0]
        # CEL marks the dot after an unknown root; the root itself is what the reader must look at.
        offset = next((start for name, start in _roots(text) if name == root), offset)
        what = f"unknown name {root!r}; known here: {', '.join(sorted(names))}"
        return BadExpression(what, offset=offset, suggestion=nearest(root, names))
    return BadExpression(what[:1].lower() + what[1:], offset=offset)


@lru_cache(maxsize=4096)
def _program(text: str, roots: tuple[str, ...]) -> Any:
    return _environment(roots).compile(text)


def _needs(paths: Sequence[_NamedPath], names: Names) -> dict[str, frozenset[str] | None]:
    needs: dict[str, frozenset[str] | None] = {}
    for root, path in paths:
        if root in names:
            before = needs.get(root, frozenset())
            needs[root] = None if len(path) == 1 or before is None else before | {path[1][0]}
    return needs


def _part(value: Value, members: frozenset[str] | None) -> Data:
    """Return of a value what an expression needs, in the form CEL takes."""
    if members is None or not isinstance(value, Mapping):
        return _speakable(dict(value) if isinstance(value, Mapping) else value)
    return {name: _speakable(value[name]) for name in sorted(members) if name in value}


def _check_members(paths: Sequence[_NamedPath], names: Names) -> None:
    """Refuse a member that no value can have (`ended.cod`), which CEL itself would see only when it is too late."""
    for _, path in paths:
        here: Names | None = names
        for depth, (part, offset) in enumerate(path):
            if here is None or (depth == 0 and part not in here):
                break  # anything goes, or a variable of a comprehension
            if part not in here:
                where = ".".join(name for name, _ in path[:depth])
                known = f"; known: {', '.join(sorted(here))}" if here else ""
                what = f"{where!r} has no member {part!r}{known}"
                raise BadExpression(what, offset=offset, suggestion=nearest(part, here))
            here = here[part]


def _paths(text: str) -> Iterator[_NamedPath]:
    """Yield every dotted path outside string literals as its root and its (name, offset) parts, less a method name."""
    for token in _TOKEN.finditer(text):
        if token["path"] is None:
            continue
        parts = [(m[0], token.start("path") + m.start()) for m in re.finditer(r"[A-Za-z_]\w*", token["path"])]
        if token["call"]:
            parts = parts[:-1]  # the function or method called
        if parts:
            yield parts[0][0], parts


def _roots(text: str) -> Iterator[tuple[str, int]]:
    for root, parts in _paths(text):
        yield root, parts[0][1]


def _reason(message: str) -> str:
    """Take the status words of the C++ library from a message: what remains is for people."""
    text = re.sub(r"^[A-Z_]+: (ERROR: <input>:-?\d+:-?\d+: )?", "", message.strip())
    text = re.sub(r"\s*\[[A-Z_]+\]\s*$", "", text).split("\n")[0]
    return text[:1].lower() + text[1:]


# Bytes that are not UTF-8, as Python has them in arguments and file names, and what they are within CEL.
_BYTES = {0xDC00 + byte: 0x10FE00 + byte for byte in range(0x80, 0x100)}
_BYTES_AGAIN = {inside: byte for byte, inside in _BYTES.items()}


def _speakable(value: Data) -> Data:
    """Return a value with every text in a form CEL keeps whole: it ends a text at NUL and refuses lone surrogates."""
    match value:
        case str():
            clean = value.replace("\0", "\u2400")
            return clean if clean.isascii() else clean.translate(_BYTES).encode("utf-8", "replace").decode()
        case list():
            return [_speakable(x) for x in value]
        case dict():
            return {str(_speakable(key)): _speakable(x) for key, x in value.items()}
        case _:
            return value


def _plain(value: Any) -> Data:
    """Return a CEL value as plain data; times and bytes become text, as JSON would have them."""
    match value:
        case None | bool() | int():
            return value
        case float():
            return value if math.isfinite(value) else str(value)  # JSON has no other numbers
        case str():
            return value if value.isascii() else value.translate(_BYTES_AGAIN)
        case bytes() | bytearray():
            return bytes(value).decode("utf-8", "backslashreplace")
        case list() | tuple():
            return [_plain(x) for x in value]
        case dict():
            # The C++ library orders maps by a hash that differs from process to process; a replay must not.
            return {str(k): _plain(v) for k, v in sorted(value.items(), key=lambda pair: str(pair[0]))}
        case _:
            return str(value)


# Fill `${{ expression }}` in texts and data; a value that is one expression and nothing else keeps its type.


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
    """Split a text at its `${{ }}`; `$${{` is a literal `${{`. Raises BadExpression when one never ends."""
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


# Say in a few words which part of a condition does not hold, and with what values.


_MOST_VALUES = 3
_LONGEST_VALUE = 40  # characters

_PLAIN = re.compile(r"!?\s*[A-Za-z_][\w.]*")


@dataclass(frozen=True)
class FalsePart:
    """The first part of a false condition that is false by itself.

    As text, `workload.eager is true`; for an input the flag that changes it is added. A comparison is followed by the
    values in it: `workload.ranks > 1 (workload.ranks is 1)`.
    """

    part: str
    """As the runbook has it."""
    path: str = ""
    """What the part is the value of, or the opposite of: `workload.eager`; empty for any other part."""
    value: bool = False
    """The value of `path`."""
    compared: tuple[str, ...] = ()
    """The values in a comparison, each as text: `workload.ranks is 1`."""

    @property
    def flag(self) -> str:
        """The flag that changes the value of an input: `-i deep=true`; empty for what is no input."""
        name = self.path.removeprefix("inputs.")
        return f"-i {name}={str(not self.value).lower()}" if name != self.path else ""

    def __str__(self) -> str:
        if self.path:
            return f"{self.path} is {str(self.value).lower()}" + (f"; {self.flag} changes that" if self.flag else "")
        return f"{self.part} ({', '.join(self.compared)})" if self.compared else self.part


def why_false(condition: str, names: Names, values: Mapping[str, Value]) -> FalsePart:
    """Return the first part of a false condition that is false by itself, or all of it where no part is."""
    for part in conjuncts(condition):
        expression = compile_expression(part, names)
        try:
            if expression.evaluate(values) is not False:
                continue
        except ExpressionFailed:
            continue
        if _PLAIN.fullmatch(part):
            return FalsePart(part, path=part.lstrip("! "), value=part.startswith("!"))
        return FalsePart(part, compared=tuple(islice(_values(part, names, values), _MOST_VALUES)))
    return FalsePart(condition)


def _values(part: str, names: Names, values: Mapping[str, Value]) -> Iterator[str]:
    for path in named_paths(part, names):
        try:
            value = compile_expression(path, names).evaluate(values)
        except ExpressionFailed:
            continue
        match value:
            case None | bool():
                yield f"{path} is {'null' if value is None else str(value).lower()}"
            case int() | float():
                yield f"{path} is {value:.15g}"
            case str() if len(value) <= _LONGEST_VALUE:
                yield f"{path} is {value!r}"
