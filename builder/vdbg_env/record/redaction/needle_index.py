"""Finds many plain words in lines of output at once, fast where lines repeat: which is where output is huge.

Python's `re` searches text at some 40 MB/s and one `bytes.find` at 1,500, but two dozen words need two dozen passes.
Gigabytes of output are ever the same few lines with other numbers in them, so each line is looked at once with its
digits and case folded away, and what was found is remembered.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

REMEMBERED = 20_000  # lines; then all are forgotten
LONGEST = 1024  # bytes of a line worth remembering
_START = 8  # bytes of a word by which it is looked up
_MANY = 1024  # words that are looked up so: fewer are found sooner one by one

_UPPER, _LOWER = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ", b"abcdefghijklmnopqrstuvwxyz"
_BLANK = re.compile(rb"\s")
Counts = Callable[[bytes, int, int], bool]  # of a text, and the place of a word in it: its begin and end
PLAIN_FOLD = bytes.maketrans(_UPPER + b"123456789", _LOWER + b"000000000")


def fold_also(letters: bytes) -> bytes:
    """Return PLAIN_FOLD with these letters made one too, for words that differ in them to need one search."""
    return PLAIN_FOLD.translate(bytes.maketrans(letters, letters[:1] * len(letters)))


class NeedleIndex:
    """Looks for `words`; a hit is only a candidate, for words that fold to the same text are not told apart.

    A word given in `counts` counts only where its function says so, of text that is folded and whose lines have nothing
    to do with one another: `tokens/s` is on every other line of an inference log, `token=` is not.
    """

    def __init__(
        self, words: Sequence[bytes], fold: bytes = PLAIN_FOLD, counts: Mapping[bytes, Counts] | None = None
    ) -> None:
        self._fold = fold
        self._words: dict[bytes, list[int]] = {}
        self._counts = {word.translate(fold): function for word, function in (counts or {}).items()}
        for number, word in enumerate(words):
            self._words.setdefault(word.translate(fold), []).append(number)
        self._known: dict[bytes, tuple[tuple[int, int], ...]] = {}
        self._starts: dict[bytes, list[bytes]] = {}
        self._others = [word for word in self._words if len(word) < _START or _BLANK.search(word)]
        for word in set(self._words).difference(self._others):
            self._starts.setdefault(word[:_START], []).append(word)
        if len(self._starts) < _MANY:
            self._starts, self._others = {}, list(self._words)

    def hits(self, data: bytes) -> Iterator[tuple[int, int]]:
        """Yield offset and number of each word found, line by line in order."""
        lines = data.translate(self._fold).split(b"\n")
        if len(self._known) > REMEMBERED:
            self._known.clear()
        known = self._known
        if fresh := set(lines).difference(known):
            known.update(dict.fromkeys(fresh, ()))
            known.update(self._search(fresh))
        of_lines = [known[line] for line in lines]
        if fresh and max(map(len, fresh)) > LONGEST:
            for line in fresh:
                if len(line) > LONGEST:
                    del known[line]
        if not any(of_lines):
            return
        start = 0
        for line, hits in zip(lines, of_lines, strict=True):
            for at, number in hits:
                yield start + at, number
            start += len(line) + 1

    def _search(self, lines: Iterable[bytes]) -> dict[bytes, tuple[tuple[int, int], ...]]:
        """Return the hits of each line that has any, in rising order."""
        joined = b"\n".join(lines)
        vocabulary = b"\n".join(set(joined.split()))  # far shorter than the lines
        found: dict[bytes, list[tuple[int, int]]] = {}
        for word in self._candidates(vocabulary):
            numbers = self._words[word]
            counts = self._counts.get(word)
            step = next(n for n in range(1, len(word) + 1) if word.startswith(word[n:]))  # `00000000` is at each zero
            at, start, end, line = -step, 0, -1, b""
            while (at := joined.find(word, at + step)) >= 0:
                if counts and not counts(joined, at, at + len(word)):
                    continue
                if at > end:  # a long line with many hits is cut out once
                    start = joined.rfind(b"\n", 0, at) + 1
                    end = joined.find(b"\n", at)
                    end = len(joined) if end < 0 else end
                    line = joined[start:end]
                found.setdefault(line, []).extend((at - start, number) for number in numbers)
        return {line: tuple(sorted(hits)) for line, hits in found.items()}

    def _candidates(self, vocabulary: bytes) -> Iterator[bytes]:
        """Yield the words that may be in lines of this vocabulary."""
        yield from (word for word in self._others if word in vocabulary or _BLANK.search(word))
        if self._starts:
            starts = {vocabulary[at : at + _START] for at in range(len(vocabulary) - _START + 1)}
            for start in starts.intersection(self._starts):
                yield from (word for word in self._starts[start] if word in vocabulary)
