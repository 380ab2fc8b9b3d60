"""Put the keys of a runbook file in one order by moving whole lines: every comment stays with its key.

Mappings in braces stay as they were written, and so do names that the author chose (inputs, matchers, variables).
"""

from __future__ import annotations

from collections.abc import Sequence

from vdbg_env.common.errors import VdbgError
from vdbg_env.common.yaml_source import Path, Value, YamlSource, read
from vdbg_env.runbook.model.limits import KillPolicy, Matcher, OutputPolicy, Placement, ServerDriver, Watch
from vdbg_env.runbook.model.runbook import Command, Input, Metadata, Requires, RunbookFile, Spec

_STEP = (
    "id", "name", "explain", "from", "if", "run", "uses", "with", "manual", "requires", "timeout", "kill", "watch",
    "placement", "output", "engine_args", "env", "argv", "repeat", "verify_env", "matchers", "artifacts", "readers",
    "results", "outcomes", "next", "skipped",
)  # fmt: skip
_OUTCOME = (
    "when", "rule", "level", "how_known", "confidence", "location", "message", "next_step", "next",
)  # fmt: skip


def _keys(part: type) -> tuple[str, ...]:
    fields: dict[str, object] = part.model_fields  # type: ignore[attr-defined]
    return tuple(getattr(field, "alias", None) or name for name, field in fields.items() if name != "name")


_MAPPINGS = {  # the key of a mapping, or of the mapping around it where the author chooses the names
    "metadata": ("name", *_keys(Metadata)), "requires": _keys(Requires), "kill": _keys(KillPolicy),
    "watch": _keys(Watch), "placement": _keys(Placement), "output": _keys(OutputPolicy), "driver": _keys(ServerDriver),
    "manual": ("prompt", "choices", "timeout", "default"), "argv": ("wrap", "remove", "append"),
}  # fmt: skip
_NAMED = {"inputs": _keys(Input), "matchers": _keys(Matcher), "commands": _keys(Command)}


def formatted(source: YamlSource) -> str:
    """Return the text of a runbook or shared step with its keys in order; the document is the same."""
    lines = list(source.text)
    _Layout(source, lines).put_in_order((), source.value, len(lines))
    text = "\n".join(lines) + "\n"
    if _comparable(read(text.encode(), source.name).value) != _comparable(source.value):
        raise VdbgError(
            f"{source.name} cannot be put in order without a change of what it says; nothing was written",
            cause="a text over several lines, or a comment, has a layout that is not understood",
            next_step="put its keys in order by hand",
        )
    return text


def _comparable(value: Value) -> object:
    """Return a document for a comparison that the order of names matters to where their author chose them."""
    match value:
        case dict():
            named = {key: list(inner) for key, inner in value.items() if key in _NAMED and isinstance(inner, dict)}
            return named, {key: _comparable(inner) for key, inner in value.items()}
        case list():
            return [_comparable(inner) for inner in value]
        case _:
            return value


def _order(path: Path, kind: object) -> Sequence[str]:
    """Return the keys of the mapping at `path`, in their order; none where the author chooses them."""
    match path:
        case ():
            return _keys(RunbookFile)
        case ("spec",):
            return _STEP if kind == "Step" else _keys(Spec)
        case (*_, "steps", int()):
            return _STEP
        case (*_, "outcomes", int(), str()):
            return _OUTCOME
        case (*_, str() as around, str()) if around in _NAMED:
            return _NAMED[around]
        case (*_, str() as key):
            return _MAPPINGS.get(key, ())
        case _:
            return ()


class _Layout:
    """Moves the lines of one file, the innermost mappings first: a mapping keeps the lines that it has."""

    def __init__(self, source: YamlSource, lines: list[str]) -> None:
        self._source = source
        self._lines = lines
        self._kind = source.value.get("kind") if isinstance(source.value, dict) else None

    def put_in_order(self, path: Path, value: Value, end: int) -> None:
        """Put what is at `path` in order, which ends before the line `end` (counted from 0)."""
        parts: list[tuple[str | int, Value]] = []
        match value:
            case dict():
                parts = list(value.items())
            case list():
                parts = list(enumerate(value))
        starts = [self._start((*path, key), index) for index, (key, _) in enumerate(parts)]
        for (key, inner), following in zip(parts, [*starts[1:], end], strict=False):
            if following is not None:
                self.put_in_order((*path, key), inner, following)
        if isinstance(value, dict) and starts and self._is_block(path, value):
            self._sort(path, list(value), [start for start in starts if start is not None], end)

    def _start(self, path: Path, index: int) -> int | None:
        """Return the first line of a part: that of its key or dash, or of the comments and blank lines above."""
        line, column = self._place(path)
        if isinstance(path[-1], int):
            column = self._lines[line].find("-")
        while index and line > 0 and self._belongs_below(line - 1, column):
            line -= 1
        return line

    def _place(self, path: Path) -> tuple[int, int]:
        line, column = self._source.place(path, key=isinstance(path[-1], str))
        return line - 1, column - 1

    def _belongs_below(self, line: int, column: int) -> bool:
        text = self._source.text[line]
        return not text.strip() or (text.lstrip().startswith("#") and len(text) - len(text.lstrip()) == column)

    def _is_block(self, path: Path, value: dict[str, Value]) -> bool:
        """Return whether each key of a mapping begins its line; the first may follow a dash."""
        for index, key in enumerate(value):
            line, column = self._place((*path, key))
            before = self._source.text[line][:column]
            if before.strip() not in ({"", "-"} if index == 0 else {""}):
                return False
        return True

    def _sort(self, path: Path, keys: list[str], starts: list[int], end: int) -> None:
        order = {key: number for number, key in enumerate(_order(path, self._kind))}
        ranks = sorted(range(len(keys)), key=lambda index: order.get(keys[index], len(order)))
        if not order or ranks == list(range(len(keys))):
            return
        line, column = self._place((*path, keys[0]))
        dash = self._lines[line][:column]
        blocks = [self._lines[start:stop] for start, stop in zip(starts, [*starts[1:], end], strict=True)]
        blocks[0][0] = " " * column + blocks[0][0][column:]
        moved = [text for index in ranks for text in blocks[index]]
        if dash.strip():
            first = next(number for number, text in enumerate(moved) if text.strip() and text.lstrip()[0] != "#")
            moved[first] = dash + moved[first][column:]
            moved[:first] = [" " * dash.find("-") + text.lstrip() if text.strip() else text for text in moved[:first]]
        self._lines[starts[0] : end] = _blank_lines_first(moved)


def _blank_lines_first(lines: list[str]) -> list[str]:
    """Return the lines of a mapping with the blank ones before its first key moved to its end."""
    blank = next((number for number, text in enumerate(lines) if text.strip()), 0)
    return [*lines[blank:], *lines[:blank]]
