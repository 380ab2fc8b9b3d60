"""Which argument of a kernel a line of its source accesses, read from the text alone.

A kernel of other people's making says in its source what it subscripts. `accessed` gives the parameters that the
statement at a line may access, so that the base which gpucore names can be held against them. The text is not parsed
as C++: what a macro or a member function hides is not found, and then nothing is decided.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

_NAME = r"[A-Za-z_]\w*"
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_POINTER = re.compile(rf"(?:\*|\bauto)\s*(?:const\s+)?(?:__restrict__\s+)?({_NAME})\s*=\s*([^;]+);")
_OBJECT = re.compile(rf"[\w>]\s+({_NAME})\s*[({{]([^;]*)[)}}]\s*;")
_SUBSCRIPTED = re.compile(rf"({_NAME})(?:(?:\.|->){_NAME})*\s*\[|\*\s*({_NAME})")


@dataclass(frozen=True)
class KernelText:
    """A kernel in a source file: its parameters' names in order, and the lines from its name to its last brace."""

    parameters: tuple[str, ...]
    first: int
    lines: Sequence[str]

    @cached_property
    def _pointers(self) -> dict[str, set[str]]:
        """The names in what each local pointer is set to, or an object is made of, outside of subscripts."""
        found: dict[str, set[str]] = {}
        text = "\n".join(self.lines)
        for name, value in (*_POINTER.findall(text), *_OBJECT.findall(text)):
            found.setdefault(name, set()).update(re.findall(_NAME, re.sub(r"\[[^]]*\]", "", value)))
        return found

    def accessed(self, line: int, *, inlined: bool) -> frozenset[str]:
        """Return the parameters that the statement at a line of the file may access; none where it is not decided.

        `inlined` says that the access is in a function which the statement calls: each of its arguments may be meant.
        """
        text = self._statement(line - self.first)
        subscripted = set() if inlined else {one or other for one, other in _SUBSCRIPTED.findall(text)}
        return self._parameters(subscripted) or self._parameters(set(re.findall(_NAME, text)))

    def _parameters(self, names: set[str]) -> frozenset[str]:
        known, new = set(names), set(names)
        while new:
            new = {one for name in new for one in self._pointers.get(name, ())} - known
            known |= new
        return frozenset(known.intersection(self.parameters))

    def _statement(self, at: int) -> str:
        start = end = at
        while start > 0 and not re.search(r"[;{}]\s*$", self.lines[start - 1]):
            start -= 1
        while end + 1 < len(self.lines) and not re.search(r"[;{}]\s*$", self.lines[end]):
            end += 1
        return "\n".join(self.lines[start : end + 1])


def kernel_texts(text: str, name: str) -> Iterator[KernelText]:
    """Yield the kernels of a name in a source file; a comment is as if it were not there."""
    plain = _COMMENT.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), text)
    for found in re.finditer(rf"\b{re.escape(name)}\s*\(", plain):
        declared = max(plain.rfind(end, 0, found.start()) for end in ";}")
        if not re.search(r"__global__|KERNEL_ATTRIBUTES", plain[max(declared, 0) : found.start()]):
            continue
        end = _closing(plain, found.end() - 1, "()")
        body = plain.find("{", end)
        if body < 0 or ";" in plain[end:body]:
            continue
        first, last = plain.count("\n", 0, found.start()), plain.count("\n", 0, _closing(plain, body, "{}"))
        parameters = tuple(map(_declared, _split(plain[found.end() : end])))
        yield KernelText(parameters, first + 1, plain.split("\n")[first : last + 1])


def _closing(text: str, start: int, pair: str) -> int:
    depth = 0
    for at in range(start, len(text)):
        depth += (text[at] == pair[0]) - (text[at] == pair[1])
        if depth == 0:
            return at
    return len(text)


def _split(text: str) -> Iterator[str]:
    depth = start = 0
    for at, letter in enumerate(text):
        depth += (letter in "(<[") - (letter in ")>]")
        if letter == "," and depth == 0:
            yield text[start:at]
            start = at + 1
    if text[start:].strip():
        yield text[start:]


def _declared(parameter: str) -> str:
    names = re.findall(_NAME, parameter.split("=")[0])
    return names[-1] if names else ""
