"""Write crashes by their cause, as text and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from gpucore.mangling import short_name
from vdbg_env.application.guard.groups import CrashGroup
from vdbg_env.common.printable import printable
from vdbg_env.report.codec.document import Document, field

_RUNS_SHOWN = 5


def as_text(groups: Sequence[CrashGroup]) -> str:
    """Return one paragraph for each cause."""
    return "\n".join("".join(f"{printable(line)}\n" for line in _lines(group)) for group in groups)


class GroupEntry(Document, of=CrashGroup):
    """The crashes of one cause; the one with the most detail describes it."""

    cause: str = field("telling.cause")
    base: str = field("telling.base")
    exception: str | None = field("telling.exception")
    kernel: str | None = field("telling.kernel")
    place: str | None = field("telling.place")
    found: str | None = field("telling.found")
    crashes: int = field(lambda group, _: len(group.crashes))
    first: str = field(lambda group, _: group.crashes[0].started)
    last: str = field(lambda group, _: group.crashes[-1].started)
    hosts: list[str]
    ranks: list[int]
    runs: list[str] = field(lambda group, _: [crash.run for crash in group.crashes])


class GroupsDocument(Document):
    """Recorded crashes by cause, the most frequent first. Fields are only ever added."""

    schema: Literal["vdbg-env/runs/v1"]
    groups: list[GroupEntry] = field(lambda groups, _: groups)
    unreadable: list[str] = field(
        lambda _, unreadable: map(str, unreadable), doc="Why the records of other runs cannot be read."
    )


def _lines(group: CrashGroup) -> Iterator[str]:
    best, count = group.telling, len(group.crashes)
    where = f" in {short_name(best.kernel)}" if best.kernel else ""
    at = f" at {best.place}" if best.place else ""
    yield f"{count:>4} x {best.cause}  {best.exception}{where}{at}"
    when = group.crashes[0].started if count == 1 else f"{group.crashes[0].started} to {group.crashes[-1].started}"
    ranks = f", ranks {', '.join(map(str, group.ranks))}" if len(group.ranks) > 1 else ""
    yield f"       {when}, on {', '.join(group.hosts) or 'an unknown host'}{ranks}"
    if best.found:
        yield f"       {best.found}"
    newest = [crash.run for crash in reversed(group.crashes)][:_RUNS_SHOWN]
    more = f" and {count - len(newest)} more" if count > len(newest) else ""
    yield f"       {', '.join(newest)}{more}"
