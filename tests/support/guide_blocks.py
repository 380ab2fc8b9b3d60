"""The blocks of code of a Markdown page, as a reader would copy them."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

_INDENT = "    "
_FENCE = re.compile(r"( *)```(\w*)")


@dataclass(frozen=True)
class Block:
    """A block that begins on a line of its page; `language` is that of its fence, empty for an indented one."""

    line: int
    language: str
    text: str


def blocks(page: str) -> Iterator[Block]:
    """Yield the fenced and the indented blocks of a page, in their order."""
    lines = page.split("\n")
    number = 0
    while number < len(lines):
        fence = _FENCE.match(lines[number])
        begin = number
        if fence:
            number += 1
            while lines[number].strip() != "```":
                number += 1
            text = "\n".join(line.removeprefix(fence[1]) for line in lines[begin + 1 : number])
            yield Block(begin + 1, fence[2], text)
        elif lines[number].startswith(_INDENT) and not (begin and lines[begin - 1].strip()):
            while number < len(lines) and (lines[number].startswith(_INDENT) or not lines[number].strip()):
                number += 1
            yield Block(begin + 1, "", "\n".join(line[4:] for line in lines[begin:number]).rstrip())
            continue
        number += 1
