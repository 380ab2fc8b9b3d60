"""Where the lines of a pack are from: one entry for each binary that was packed."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from typing import Final

from vdbg_env.common.errors import UnreadableBinary

_LONGEST: Final = 4096
_MOST: Final = 100_000


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """A binary that lines were packed from; what is not known is empty.

    `digest` is the sha256 of the binary. `release` is what the user calls the build, such as `vllm 0.33.0`; `compiler`
    and `options` are what ptxas noted. `plan` is the digest of the build plan. `verdict` is the proof of line info over
    the whole binary, with how many functions have code and how many of those have lines.
    """

    digest: str
    binary: str
    release: str = ""
    compiler: str = ""
    options: str = ""
    plan: str = ""
    verdict: str = ""
    functions: int = 0
    with_lines: int = 0

    @property
    def build(self) -> str:
        """The build in a few words."""
        return ", ".join(
            part for part in (self.release or self.binary, self.compiler and f"nvcc {self.compiler}") if part
        )


def dump(entries: Iterable[Provenance]) -> bytes:
    """Return the entries as JSON, by digest."""
    ordered = sorted(entries, key=lambda entry: entry.digest)
    return json.dumps([asdict(entry) for entry in ordered], sort_keys=True, separators=(",", ":")).encode()


def load(data: bytes) -> tuple[Provenance, ...]:
    """Return the entries, without fields of later versions; raises UnreadableBinary when they are not such a list."""
    try:
        rows = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise UnreadableBinary(f"the provenance of a line pack is damaged: {error}") from error
    if not isinstance(rows, list) or len(rows) > _MOST:
        raise UnreadableBinary("the provenance of a line pack is not a list")
    return tuple(_entry(row) for row in rows)


def _entry(row: object) -> Provenance:
    kinds = {field.name: int if field.type == "int" else str for field in fields(Provenance)}
    if not isinstance(row, dict) or not {"digest", "binary"} <= row.keys():
        raise UnreadableBinary("the provenance of a line pack has an entry without digest or binary")
    known = {name: row[name] for name in kinds if name in row}
    for name, value in known.items():
        if type(value) is not kinds[name] or (isinstance(value, str) and len(value) > _LONGEST):
            raise UnreadableBinary(f"the provenance of a line pack has a {name} of another type")
    return Provenance(**known)
