"""Finds many plain words in lines of output at once, fast where lines repeat: which is where output is huge.

Python's `re` searches text at some 40 MB/s and one `bytes.find` at 1,500, but two dozen words need two dozen passes.
Gigabytes of output are ever the same few lines with other numbers in them, so each line is looked at once with its
digits and case folded away, and what was found is remembered.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

REMEMBERED = 20_000  # lines; then all are forgotten
LONGEST = 1024  # bytes of a line worth remembering

_UPPER, _LOWER = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ", b"abcdefghijklmnopqrstuvwxyz"
PLAIN_FOLD = bytes.maketrans(_UPPER + b"123456789", _LOWER + b"000000000")


def fold_also(letters: bytes) -> bytes:
    """Return PLAIN_FOLD with these letters made one too, for words that differ in them to need one search."""
    return PLAIN_FOLD.translate(bytes.maketrans(letters, letters[:1] * len(letters)))


class NeedleIndex:
    """Looks for `words`; a hit is only a candidate, for words that fold to the same text are not told apart.

    A word given with bytes in `followed_by` counts only where one of them, or the line's end, comes next: `tokens/s`
    is on every other line of an inference log, `token=` is not.
    """

    def __init__(
        self, words: Sequence[bytes], fold: bytes = PLAIN_FOLD, followed_by: Mapping[bytes, bytes] | None = None
    ) -> None:
        self._fold = fold
        self._words: dict[bytes, list[int]] = {}
        self._followed_by = {word.translate(fold): after for word, after in (followed_by or {}).items()}
        for number, word in enumerate(words):
            self._words.setdefault(word.translate(fold), []).append(number)
        self._known: dict[bytes, tuple[tuple[int, int], ...]] = {}

    def hits(self, data: bytes) -> Iterator[tuple[int, int]]:
        """Yield offset and number of each word found, line by line in order."""
        lines = data.translate(self._fold).split(b"\n")
        unique = set(lines)
        if len(self._known) > REMEMBERED:
            self._known.clear()
        known = self._known
        fresh = [line for line in unique if line not in known]
        if fresh:
            found = self._search(fresh)
            known.update((line, found.get(line, ())) for line in fresh if len(line) <= LONGEST)
            if any(len(line) > LONGEST for line in fresh):
                known = {**{line: known[line] for line in unique if line in known}, **found}
        if not any(known.get(line) for line in unique):
            return
        start = 0
        for line in lines:
            for at, number in known.get(line, ()):
                yield start + at, number
            start += len(line) + 1

    def _search(self, lines: Iterable[bytes]) -> dict[bytes, tuple[tuple[int, int], ...]]:
        """Return the hits of each line that has any, in rising order."""
        joined = b"\n".join(lines)
        found: dict[bytes, list[tuple[int, int]]] = {}
        for word, numbers in self._words.items():
            after = self._followed_by.get(word)
            at, start, end, line = -len(word), 0, -1, b""
            while (at := joined.find(word, at + len(word))) >= 0:
                following = joined[at + len(word) : at + len(word) + 1]
                if after and following not in {b"", b"\n"} and following not in after:
                    continue
                if at > end:  # a long line with many hits is cut out once
                    start = joined.rfind(b"\n", 0, at) + 1
                    end = joined.find(b"\n", at)
                    end = len(joined) if end < 0 else end
                    line = joined[start:end]
                found.setdefault(line, []).extend((at - start, number) for number in numbers)
        return {line: tuple(sorted(hits)) for line, hits in found.items()}
