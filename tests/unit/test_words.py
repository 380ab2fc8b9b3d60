"""Texts are plain, current English: turns that make a stranger stop are counted, and the clear ones are refused.

What is read: docstrings, comments and messages below builder/, the pages of docs/ and the other Markdown files, and the
texts of the runbooks.
"""

import ast
import io
import re
import tokenize
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PER_THOUSAND = 1.3  # of all turns below; a bound that only falls
CLEAR_LEFT = 15  # of those in CLEAR; to become 0

# Turn -> what to write.
CLEAR = {
    r"\b(at hand|to be had|in sight)\b": "available, found",
    r"\bof (ours|yours|its own|their own|his own|our own|the user's|a user's|the tool's own)\b": "our, its",
    r"\b(go(es)?|going|gone|went) on\b": "continue",
    r"\b(held|hold|holds) (\w+ )?against\b": "compare with",
    r"\bwalk(s|ed|ing)?\b(?! (a|the|over|through) (tree|folder|director))": "run",
    r"\b(nobody|somebody|anybody|everybody|whoever)\b": "no one, someone, everyone",
    r"\bset to no use\b": "has no effect",
    r"\bmend(s|ed|ing)?\b": "fix",
    r"\bany more\b": "no longer",
    r"\b(by|for|of|to|from) who\b": "by the one that",
    r"\bfor lack of memory\b": "OOM-killed",
    r"\blent|lender\b": "given",
}
ODD = CLEAR | {
    r"\btold\b|\btells?\b": "report, print, say",
    r"\b(stands|stood|stand|standing)\b": "is",
    r"\b(lies|lie|lay)\b": "is in",
    r"\b(comes?|came)\b": "arrive, result, follow",
    r", for (it|he|they|there|then|this|that|no|some|every|each)\b": "because",
    r"\bso that\b": "so",
    r"\bbeside\b": "next to, in addition to",
    r"\bwants?\b": "needs",
    r"\b(no more|meanwhile)\b": "(leave out)",
    r"\b(last|own|closing|known) words?\b": "message, verdict",
    r"\b(said|says|say) of\b": "say about",
    r"\bknown (again|by)\b": "recognised",
    r"\b(laid|lays?) (over|out)\b": "write, place",
}


@dataclass(frozen=True)
class Text:
    """A piece of prose, and where it is."""

    place: str
    words: str


def python_texts(path: Path) -> Iterator[Text]:
    source = path.read_text()
    name = str(path.relative_to(ROOT))
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield Text(f"{name}:{token.start[0]}", token.string.lstrip("# "))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and len(node.value.split()) > 3:
            yield Text(f"{name}:{node.lineno}", node.value)


def line_texts(path: Path) -> Iterator[Text]:
    """Yield the lines of a page or of a YAML file, without blocks of code and spans of it."""
    is_code = False
    for number, line in enumerate(path.read_text().splitlines(), 1):
        is_code ^= line.lstrip().startswith("```")
        yield Text(f"{path.relative_to(ROOT)}:{number}", "" if is_code else re.sub(r"`[^`]*`", "", line))


def texts() -> tuple[Text, ...]:
    python = [p for p in sorted((ROOT / "builder").rglob("*.py")) if "__pycache__" not in p.parts]
    pages = [*sorted((ROOT / "docs").rglob("*.md")), *sorted(ROOT.glob("*.md"))]
    runbooks = [p for p in sorted((ROOT / "runbooks").rglob("*.yaml")) if "recordings" not in p.parts]
    found = [text for path in python for text in python_texts(path)]
    return (*found, *(text for path in [*pages, *runbooks] for text in line_texts(path)))


def hits(read: tuple[Text, ...]) -> Iterator[tuple[str, Text, str]]:
    some = re.compile("|".join(f"(?:{turn})" for turn in ODD))
    suspects = [text for text in read if some.search(text.words)]
    for turn, better in ODD.items():
        seen = re.compile(turn)
        yield from ((match[0], text, better) for text in suspects for match in seen.finditer(text.words))


def worst(found: list[tuple[str, Text, str]]) -> str:
    files = Counter(text.place.rpartition(":")[0] for _, text, _ in found).most_common(8)
    shown = [f"{text.place}: {turn!r}: {better}" for turn, text, better in found[:20]]
    return "\n".join(["most in: " + ", ".join(f"{name} ({count})" for name, count in files), *shown])


def test_the_texts_read_as_plain_english() -> None:
    read = texts()
    found, words = list(hits(read)), sum(len(text.words.split()) for text in read)
    assert len(found) * 1000 / words <= PER_THOUSAND, f"{len(found)} in {words} words; {worst(found)}"
    clear = [hit for hit in found if hit[2] in CLEAR.values()]
    assert len(clear) <= CLEAR_LEFT, f"{len(clear)}; {worst(clear)}"


@pytest.mark.parametrize("turn", ODD)
def test_each_turn_has_a_better_word_that_is_not_odd(turn: str) -> None:
    assert not any(re.search(one, ODD[turn]) for one in ODD)
