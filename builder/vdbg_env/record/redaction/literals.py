"""Know the forms of known values, by how they begin and by where a stream may be cut (see `search`)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator

from vdbg_env.record.redaction.whole_text import WholeText, whole

# How a value begins that makes a colour of an unfinished code before it: what follows is searched for, too.
_AS_COLOUR = re.compile(rb"\A[0-;]{0,64}[mK]")
_REST = 5  # bytes of that; less would blacken the whole log
PREFIX = 8  # bytes of a value that are searched for: a table for whole values would not fit into a cache


class LiteralFinder:
    """Finds `values`, which are forms of known secrets; `prefixes` are the values by how they begin."""

    def __init__(self, values: tuple[bytes, ...]) -> None:
        wholes = [whole(value) for value in values]
        rests = [rest for value in wholes if len(rest := _AS_COLOUR.sub(b"", value)) >= _REST]
        self.values = tuple(filter(None, dict.fromkeys([*wholes, *rests])))
        self.prefixes = _grouped(self.values, PREFIX)
        self._longest = max(map(len, self.values), default=0)
        self._beginnings = _grouped(self.values, 2)
        self._rests = {
            first: tuple(sorted((value[1:] for value in found), key=len, reverse=True))
            for first, found in _grouped(self.values, 1).items()
        }

    def placed(self, joined: WholeText, found: Iterable[tuple[int, bytes]], before: bytes) -> Iterator[tuple[int, int]]:
        """Yield where the values found are in the data, and what of one follows the byte `before`."""
        rests = self._rests.get(before, ())
        if rests and joined.text.startswith(rests):
            found = [(0, next(rest for rest in rests if joined.text.startswith(rest))), *found]
        for at, value in found:
            yield joined.place_of(at), joined.place_of(at + len(value) - 1) + 1

    def open_end(self, data: bytes, begins: Callable[[bytes], bool]) -> int:
        """Return where the last bytes of `data` begin that may be the start of a value; its length if none are.

        `begins` returns whether one of `prefixes` is in a text: to try each place would cost a fifth of the speed.
        """
        if not self._longest:
            return len(data)
        tail = data[-4 * self._longest :]
        joined = WholeText(tail)
        text = joined.text[-self._longest :]
        left_out = len(joined.text) - len(text)
        for at in range(0 if begins(text) else max(0, len(text) - PREFIX), len(text) - 1):
            values = self._beginnings.get(text[at : at + 2])
            if values and any(value.startswith(text[at:]) for value in values):
                return len(data) - len(tail) + joined.place_of(left_out + at)
        return len(data)


def _grouped(values: Iterable[bytes], length: int) -> dict[bytes, list[bytes]]:
    groups: dict[bytes, list[bytes]] = {}
    for value in values:
        groups.setdefault(value[:length], []).append(value)
    return groups
