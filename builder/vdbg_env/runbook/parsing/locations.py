"""Where each part of a runbook was written: in its own file, or in the shared step it was taken from."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from vdbg_env.common.errors import Complaint
from vdbg_env.common.yaml_source import Path, YamlSource

_WORD = re.compile(r"\w+|\S")
_REACH = 60  # lines after its start in which a folded or literal text is searched


@dataclass(frozen=True, kw_only=True)
class Places:
    """A runbook's source, and which paths of it were borrowed from the sources of shared steps."""

    source: YamlSource
    borrowed: Mapping[Path, tuple[YamlSource, Path]] = field(default_factory=dict)

    def complaint(self, path: Path, what: str, *, key: bool = False, suggestion: str | None = None) -> Complaint:
        """Make a complaint about the value at `path` (or its key), in the file where it was written."""
        source, path = self._origin(path)
        return source.complaint(path, what, key=key, suggestion=suggestion)

    def written(self, path: Path) -> bool:
        """Say whether there is a value written at exactly this path."""
        source, path = self._origin(path)
        return path in source.places

    def inside(self, path: Path, text: str, offset: int, what: str, suggestion: str | None = None) -> Complaint:
        """Make a complaint about the character at `offset` of the text at `path`.

        Quotes, escapes and folding make a text's columns differ from the file's, so the word at the offset is looked
        up in the file: as many occurrences from the start of the text as it has before the offset.
        """
        source, path = self._origin(path)
        complaint = source.complaint(path, what, suggestion=suggestion)
        word = _WORD.match(text, min(offset, max(0, len(text) - 1)))
        if not word:
            return complaint
        wanted = sum(m.start() < offset for m in re.finditer(re.escape(word[0]), text))
        line, column = complaint.line, complaint.column - 1
        for number in range(line, min(len(source.text), line + _REACH) + 1):
            excerpt = source.text[number - 1]
            for found in re.finditer(re.escape(word[0]), excerpt[column:]):
                if wanted == 0:
                    return replace(complaint, line=number, column=column + found.start() + 1, excerpt=excerpt)
                wanted -= 1
            column = 0
        return complaint

    def _origin(self, path: Path) -> tuple[YamlSource, Path]:
        for length in range(len(path) if self.borrowed else 0, 0, -1):
            if path[:length] in self.borrowed:
                source, prefix = self.borrowed[path[:length]]
                return source, (*prefix, *path[length:])
        return self.source, path
