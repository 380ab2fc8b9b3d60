"""What the text of a CUDA source file says of names: a kernel's parameters, and what a loaded value is called.

This is no parser of C++. It knows comments, literals, brackets, scopes and declarations. Where it does not understand
the text, or the text leaves several possible, it gives no name.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

_HIDDEN: Final = re.compile(
    r"//[^\n]*|/\*.*?\*/|R\"(?P<mark>[^\s()\\]{0,16})\(.*?\)(?P=mark)\"|\"(?:\\.|[^\"\\\n])*\""
    r"|(?<![0-9A-Za-z_])'(?:\\.|[^'\\\n])+'|^[ \t]*#(?:\\\n|[^\n])*",
    re.DOTALL | re.MULTILINE,
)
_STRUCTURE: Final = re.compile(r"[(){};]")
_NAMESPACE: Final = re.compile(r"\bnamespace\b\s*([\w:\s]*)$")
_CLASS: Final = re.compile(r"\b(?:struct|class|union)\s+(?:\w+\s*\([^()]*\)\s*)?(\w+)[^()]*$")
_AFTER_PARAMETERS: Final = re.compile(r"(?:\s|const\b|noexcept\b|override\b|final\b)*$")
_NO_TYPE: Final = frozenset(
    {"const", "volatile", "struct", "class", "enum", "union", "typename", "register", "static", "constexpr"}
    | {"restrict", "__restrict", "__restrict__", "__grid_constant__", "inline"}
)
_STATEMENTS: Final = frozenset(
    {"return", "else", "case", "goto", "delete", "throw", "using", "typedef", "if", "for", "while", "do", "switch"}
    | {"new", "default", "break", "continue", "extern", "template", "operator", "sizeof", "asm", "__asm__"}
)
_BUILTIN: Final = frozenset(
    {"void", "bool", "char", "short", "int", "long", "signed", "unsigned", "float", "double", "wchar_t"}
)
_ALIASES: Final = {
    "int8_t": "signed char", "uint8_t": "unsigned char", "int16_t": "short", "uint16_t": "unsigned short",
    "int32_t": "int", "uint32_t": "unsigned", "int64_t": "long", "uint64_t": "unsigned long",
    "size_t": "unsigned long", "ptrdiff_t": "long", "uint": "unsigned", "uchar": "unsigned char",
    "ushort": "unsigned short", "ulong": "unsigned long",
}  # fmt: skip
_SIZES: Final = {"bool": 1, "char": 1, "short": 2, "int": 4, "long": 8}
_CACHED: Final = r"__ld(?:g|ca|cg|cs|lu|cv)"
_CAST: Final = re.compile(r"(?:static_cast|reinterpret_cast)\s*<(?P<named>[^<>()]*)>\s*\(|\((?P<plain>[\w:\s*]+)\)")

Kind = Literal["namespace", "class", "function", "other"]


@dataclass(frozen=True)
class Block:
    """What a pair of braces encloses; `head` is where the declaration before it starts, in characters of the text."""

    kind: Kind
    names: tuple[str, ...]
    head: int
    start: int
    end: int
    scopes: tuple[str, ...]


@dataclass(frozen=True)
class Parameter:
    """A function's parameter as the source has it; no name where it has none or is not understood."""

    type: str
    name: str | None


@dataclass(frozen=True)
class Wanted:
    """The function whose definition is looked for: the scopes it is in, its name and its parameters' types.

    Templates have one definition for many functions: `template` says that the function has arguments of a template.
    """

    scopes: tuple[str, ...]
    name: str
    template: bool
    types: tuple[str, ...]

    @classmethod
    def of(cls, short_name: str, types: Sequence[str]) -> Wanted:
        """Return what a demangled name without return type and parameters says."""
        parts = _separated(short_name.replace("(anonymous namespace)", ""), "::")
        scopes = tuple(p.partition("<")[0] for p in parts[:-1] if p and not p.startswith(("_GLOBAL__N", "_INTERNAL_")))
        name, bracket, _ = parts[-1].partition("<")
        return cls(scopes, name.strip(), bool(bracket), tuple(types))


class SourceFile:
    """The text of one source file; lines are counted from 1."""

    def __init__(self, lines: Sequence[str]) -> None:
        whole = "\n".join(lines)
        self._text: Final = _HIDDEN.sub(lambda m: re.sub(r"[^\n]", " ", m[0]), whole)
        self._starts: Final = [0, *(m.end() for m in re.finditer("\n", self._text))]
        self._blocks: Final = tuple(self._find_blocks())

    # Definitions of functions.

    def parameters_of(self, wanted: Wanted, count: int, lines: Iterable[int]) -> tuple[Parameter, ...] | None:
        """Return the parameters of the one definition that a function may have here, with this many parameters.

        `lines` are some that its instructions have in this file. None where no definition fits, or several do that
        call them differently.
        """
        known = list(lines)
        found: dict[tuple[str | None, ...], tuple[Parameter, ...]] = {}
        for block in self._blocks:
            parameters = self._parameters(block, wanted) if block.kind == "function" else None
            if parameters is None or len(parameters) != count:
                continue
            first, last = self._line(block.head), self._line(block.end)
            if not all(first <= line <= last for line in known):
                continue
            if not wanted.types or all(map(may_be, (p.type for p in parameters), wanted.types)):
                if "__global__" in self._text[block.start : block.end]:
                    return None  # only one of two branches of the preprocessor opens the braces that both share
                found[tuple(p.name for p in parameters)] = parameters
        return next(iter(found.values())) if len(found) == 1 else None

    def _parameters(self, block: Block, wanted: Wanted) -> tuple[Parameter, ...] | None:
        head = self._text[block.head : block.start]
        words = set(re.findall(r"\w+", head))
        if wanted.name not in words or ("__global__" not in words and words & {"__device__", "__host__"}):
            return None
        if ("template" in words) != wanted.template or not _is_within(block.scopes, wanted.scopes):
            return None
        for m in re.finditer(rf"(?P<outer>(?:\w+\s*::\s*)*)\b{re.escape(wanted.name)}\s*(?=[(<])", head):
            at = m.end()
            at = _behind(head, at, "<", ">") if head[at] == "<" else at
            end = _behind(head, at, "(", ")") if head[at : at + 1] == "(" else 0
            outer = tuple(re.findall(r"\w+", m["outer"]))
            if end and _AFTER_PARAMETERS.match(head, end) and _is_within((*block.scopes, *outer), wanted.scopes):
                return tuple(_parameter(p) for p in _separated(head[at + 1 : end - 1]) if p.strip() not in {"", "void"})
        return None

    def body_around(self, line: int) -> str | None:
        """Return the text of the function that a line is in; None where it is in none."""
        block = self._function_at(line)
        return self._text[block.head : block.end] if block is not None else None

    def _function_at(self, line: int) -> Block | None:
        start, end = self._span(line)
        there = [b for b in self._blocks if b.kind == "function" and b.head < end and start <= b.end]
        return there[0] if len(there) == 1 else None

    # Declarations.

    def name_of_loaded(self, line: int, base: str, element: str, own: Sequence[Parameter], atomic: bool) -> str | None:
        """Return the variable that a line declares with nothing but `base[...]`, a pointer to elements, as its value.

        `own` are the parameters of the function that the line is in, where they are known: those of the kernel. An
        atomic gives the old value of what it is applied to.
        """
        function = self._function_at(line)
        if function is None:
            return None
        start, end = self._span(line)
        there = [(a, b) for a, b in self._statements(function) if a < end and start < b]
        text = " ; ".join(self._text[a:b] for a, b in there)
        if len(re.findall(rf"\b{re.escape(base)}\b", text)) != 1 or (not own and text.count("[") + text.count("*") > 1):
            return None
        same = next((p.type for p in own if p.name == base), "")
        for a, b in there:
            for name, type_, value in _declared(self._text[a:b]):
                if _is_element(value, base, element, atomic) and _keeps_value(type_, element, same):
                    return name if self._is_set_once(function, name) else None
        return None

    def may_be_of_another_turn(self, line: int, name: str, used: int) -> bool:
        """Say whether a value that a line gives a variable may be used, at a line, under another variable's name.

        In a loop another variable may have it from the turn before.
        """
        function = self._function_at(line)
        if function is None or not self._is_in_loop(function, line):
            return False
        start, end = self._span(used)
        copied = rf"[^=!<>]=\s*{re.escape(name)}\s*[;,]"
        body = self._text[function.start : function.end]
        return re.search(rf"\b{re.escape(name)}\b", self._text[start:end]) is None or bool(re.search(copied, body))

    def _is_in_loop(self, function: Block, line: int) -> bool:
        opened: list[bool] = []
        start = function.start + 1
        for m in _STRUCTURE.finditer(self._text, start, self._span(line)[0]):
            if m[0] == "{":
                opened.append(re.search(r"\b(?:for|while|do)\b", self._text[start : m.start()]) is not None)
            elif m[0] == "}" and opened:
                opened.pop()
            if m[0] in "{}" or (m[0] == ";" and "for" not in self._text[start : m.start()].split("(")[0].split()):
                start = m.end()
        return any(opened)

    def _is_set_once(self, function: Block, name: str) -> bool:
        body = self._text[function.head : function.end]
        word = rf"(?<![\w.]){re.escape(name)}\b"
        changes = len(re.findall(rf"{word}\s*(?:[-+*/%&|^]|<<|>>)?=(?!=)", body))
        others = (
            rf"(?:\+\+|--)\s*{word}|{word}\s*(?:\+\+|--)|[(,=]\s*&\s*{word}"
            rf"|\b(?:{'|'.join(sorted(_BUILTIN))}|auto|\w+_t)\s*[*&]*\s+[*&]*{word}\s*[;,):]|\basm\b[^;]*{word}"
        )
        return changes == 1 and re.search(others, body) is None

    def _statements(self, function: Block) -> Iterator[tuple[int, int]]:
        """Yield where the statements of a function start and end; the head of a loop belongs to what follows it."""
        depth, start = 0, function.start + 1
        for m in _STRUCTURE.finditer(self._text, function.start + 1, function.end):
            depth = max(0, depth + {"(": 1, ")": -1}.get(m[0], 0))
            if m[0] in "{}" or (m[0] == ";" and not depth):
                statement = self._text[start : m.start()]
                if statement.strip():
                    yield m.start() - len(statement.lstrip()), m.start()
                start, depth = m.end(), 0

    # Lines and blocks.

    def _line(self, at: int) -> int:
        return bisect_right(self._starts, at)

    def _span(self, line: int) -> tuple[int, int]:
        if not 0 < line <= len(self._starts):
            return 0, 0
        following = self._starts[line] if line < len(self._starts) else len(self._text) + 1
        return self._starts[line - 1], following - 1

    def _find_blocks(self) -> Iterator[Block]:
        """Yield all blocks but those within functions; one that is never closed reaches to the end of the text."""
        text, end = self._text, len(self._text)
        opened: list[tuple[Block, int]] = []
        depth = start = 0
        for m in _STRUCTURE.finditer(text):
            at, letter = m.start(), m[0]
            if letter in "()":
                depth = max(0, depth + (1 if letter == "(" else -1))
            elif letter == "{":
                outer = opened[-1][0] if opened else None
                opened.append((_block(text, start, at, outer), depth))
                depth, start = 0, at + 1
            elif letter == "}":
                if opened:
                    block, depth = opened.pop()
                    if _is_outside(opened):
                        yield Block(block.kind, block.names, block.head, block.start, at, block.scopes)
                start = at + 1
            elif not depth:
                start = at + 1
        for number, (block, _) in enumerate(opened):
            if _is_outside(opened[:number]):
                yield Block(block.kind, block.names, block.head, block.start, end, block.scopes)


def _is_outside(opened: Sequence[tuple[Block, int]]) -> bool:
    return all(b.kind in {"namespace", "class"} for b, _ in opened)


def _block(text: str, head: int, at: int, outer: Block | None) -> Block:
    before = text[head:at]
    head += len(before) - len(before.lstrip())
    scopes = (*outer.scopes, *outer.names) if outer else ()
    named = _NAMESPACE.search(before)
    if named:
        names = tuple(x for x in re.findall(r"\w+", named[1]) if x != "inline")
        return Block("namespace", names, head, at, at, scopes)
    if re.fullmatch(r"\s*extern\s*", before):
        return Block("namespace", (), head, at, at, scopes)
    inside = outer is None or outer.kind in {"namespace", "class"}
    bare = re.sub(r"\btemplate\s*<[^{;]*?>\s*(?=struct|class|union)", "", before)
    named = _CLASS.search(bare) if "(" not in bare.rpartition(")")[2] and not before.rstrip().endswith(")") else None
    if named and inside:
        return Block("class", (named[1],), head, at, at, scopes)
    closed = before.rfind(")")
    if inside and closed >= 0 and "enum" not in before.split():
        return Block("function", (), head, at, at, scopes)
    return Block("other", (), head, at, at, scopes)


def _is_within(scopes: Sequence[str], wanted: Sequence[str]) -> bool:
    """Say whether scopes are some of these, in their order: a macro may hide others."""
    left = iter(wanted)
    return all(scope in left for scope in scopes)


def _behind(text: str, at: int, opening: str, closing: str) -> int:
    """Return the place behind the bracket that closes the one at a place; 0 where none does."""
    depth = 0
    for n in range(at, len(text)):
        depth += (text[n] == opening) - (text[n] == closing)
        if depth == 0:
            return n + 1
    return 0


def _separated(text: str, separator: str = ",") -> list[str]:
    """Return the parts of a text between separators outside of brackets."""
    parts, depth, start = list[str](), 0, 0
    for at, letter in enumerate(text):
        arrow = letter == ">" and text[at - 1 : at] in {"-", "="}
        depth += 0 if arrow else {"(": 1, "<": 1, "[": 1, "{": 1, ")": -1, ">": -1, "]": -1, "}": -1}.get(letter, 0)
        if depth == 0 and at >= start and text.startswith(separator, at):
            parts.append(text[start:at])
            start = at + len(separator)
    return [*parts, text[start:]]


def _parameter(text: str) -> Parameter:
    text = text.partition("=")[0]
    if "(" in text:
        return Parameter("", None)
    bare, array = re.subn(r"\[[^\]]*\]", "", text)
    words = list(re.finditer(r"\w+", re.sub(r"<.*>", lambda m: " " * len(m[0]), bare)))
    types = [w for w in words if w[0] not in _NO_TYPE]
    builtin = [w for w in types if w[0] in _BUILTIN]
    last = types[-1] if types else None
    before = bare[: last.start()].rstrip() if last else ""
    named = last is not None and last[0] not in _BUILTIN and (len(types) > 1 or builtin) and not before.endswith("::")
    if not named or last is None:
        return Parameter(bare.strip(), None)
    return Parameter((bare[: last.start()] + " " + bare[last.end() :] + "*" * bool(array)).strip(), last[0])


# Types.


@dataclass(frozen=True)
class _Type:
    base: str
    pointers: int
    builtin: bool


def _type(text: str) -> _Type:
    plain = re.sub(r"<.*>", "", text)
    words = [w for w in re.findall(r"\w+", plain.replace("std::", "")) if w not in _NO_TYPE]
    if len(words) == 1 and words[0] in _ALIASES:
        words = _ALIASES[words[0]].split()
    pointers = plain.count("*")
    if not words or not all(w in _BUILTIN for w in words):
        return _Type(words[-1] if words else "", pointers, False)
    sign = "unsigned " if "unsigned" in words else "signed " if "signed" in words and "char" in words else ""
    kind = next(
        (w for w in ("double", "float", "bool", "char", "short", "long", "void", "wchar_t") if w in words), "int"
    )
    return _Type(sign + kind, pointers, True)


def may_be(written: str, mangled: str) -> bool:
    """Say whether a type in the source may be this one of a mangled name: it may be another name of it."""
    ours, theirs = _type(written), _type(mangled)
    if ours.builtin or (ours.base and ours.base == theirs.base):
        return ours == theirs
    return ours.pointers <= theirs.pointers


def _keeps_value(declared: str, element: str, same: str) -> bool:
    """Say whether a variable of a type has the number that an element has; `same` is a type with its pointer's words.

    A number that is cut, converted, or read with another sign is another number.
    """
    ours, theirs = _type(declared), _type(element)
    if "&" in declared:
        return False
    if ours == _Type("auto", 0, False):
        return theirs.builtin
    if ours.pointers or theirs.pointers:
        return bool(theirs.pointers) == bool(ours.pointers) or _size(theirs) == 8 == _size(ours)
    if not theirs.builtin or not ours.builtin:
        pointee = _type(same)
        return ours.base != "" and (ours.base, 1) in {(theirs.base, 1), (pointee.base, pointee.pointers)}
    ours_size, theirs_size = _size(ours), _size(theirs)
    if not ours_size or not theirs_size:
        return False
    if ours.base == theirs.base:
        return True
    unsigned = [t.base.startswith("unsigned") or t.base == "bool" for t in (ours, theirs)]
    return ours_size > theirs_size and (unsigned == [False, True] or unsigned[0] == unsigned[1])


def _size(t: _Type) -> int:
    return 8 if t.pointers else _SIZES.get(t.base.removeprefix("unsigned ").removeprefix("signed "), 0)


# Expressions.


def _declared(statement: str) -> Iterator[tuple[str, str, str]]:
    """Yield name, type and value of each variable that a statement declares with a value."""
    type_ = ""
    for number, part in enumerate(_separated(statement)):
        left, equals, value = part.partition("=")
        m = re.fullmatch(r"\s*(?P<type>(?:[\w:]+(?:<[^<>]*>)?[\s*&]+)*)(?P<name>\w+)\s*", left)
        words = re.findall(r"\w+", left)
        if m is None or set(words) & _STATEMENTS:
            return
        if number == 0:
            type_ = m["type"]
            if not type_.strip():
                return
        if equals and not value.startswith("=") and (number == 0 or not m["type"].strip("*& \n")):
            pointers = "*" * left.count("*") + "&" * left.count("&")
            yield m["name"], re.sub(r"[*&]", " ", type_) + pointers, value


def _is_element(value: str, base: str, element: str, atomic: bool) -> bool:
    """Say whether a value is `base[...]` and nothing else; casts that keep its number are allowed."""
    value = value.strip()
    while True:
        if value.startswith("(") and _behind(value, 0, "(", ")") == len(value):
            value = value[1:-1].strip()
            continue
        cast = _CAST.match(value)
        if cast is None:
            break
        named = cast["named"] is not None
        if named and _behind(value, cast.end() - 1, "(", ")") != len(value):
            return False
        if not _keeps_value(cast["named"] or cast["plain"] or "", element, ""):
            return False
        value = value[cast.end() - 1 if named else cast.end() :].strip()
    if atomic:
        called = re.match(r"(?:::)?atomic\w+\s*(?=\()", value)
        if called is None or _behind(value, called.end(), "(", ")") != len(value):
            return False
        target = _separated(value[called.end() + 1 : -1])[0].strip()
        return _is_subscript(target.removeprefix("&").strip(), base) if target.startswith("&") else target == base
    called = re.match(rf"{_CACHED}\s*\(\s*&(?=.*\)$)", value, re.DOTALL)
    if called is not None:
        value = value[called.end() : -1].strip()
    return _is_subscript(value, base)


def _is_subscript(value: str, base: str) -> bool:
    m = re.match(rf"{re.escape(base)}\s*(?=\[)", value)
    return m is not None and _behind(value, m.end(), "[", "]") == len(value)
