"""Recorded crashes by their cause, as text and as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from gpucore.dwarf import SourceFrame
from gpucore.mangling import short_name
from vdbg_env.common.errors import BadInput
from vdbg_env.common.printable import printable
from vdbg_env.evidence.finding import Finding, HowKnown, Level, Observation
from vdbg_env.evidence.weigh import PREFIX, Fingerprint, is_same_cause
from vdbg_env.record.event_log import summarize, well_formed
from vdbg_env.record.run_directory import RunDirectory, RunFiles
from vdbg_env.record.values import from_document
from vdbg_env.report.assemble import SHOWED, cause_by
from vdbg_env.report.codec.document import Document, field
from vdbg_env.run.builtin_readers import read_failure, read_hang
from vdbg_env.run.builtins import RecordedOutput
from vdbg_env.run.history import ALL, Condition, Selection, condition, entries, lead_finding
from vdbg_env.runbook.model import Status


@dataclass(frozen=True, kw_only=True)
class RecordedCrash:
    """A run as far as its cause is concerned; `cause` and `base` are empty where it has no fingerprint.

    `started` is ISO 8601 in UTC. `ranks` are those that failed, where a step ran on several.
    """

    run: str
    condition: Condition
    host: str
    started: str
    cause: str = ""
    base: str = ""
    exception: str = ""
    kernel: str | None = None
    place: str | None = None
    found: str | None = None
    ranks: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class CrashGroup:
    """All crashes of one cause, the oldest first; the one with the most detail describes it."""

    crashes: tuple[RecordedCrash, ...]

    @property
    def telling(self) -> RecordedCrash:
        """The crash whose place is known best, the newest of equals."""
        return max(self.crashes, key=lambda crash: (crash.cause != crash.base, crash.place is not None, crash.started))

    @property
    def hosts(self) -> tuple[str, ...]:
        """The hosts it was seen on."""
        return tuple(sorted({crash.host for crash in self.crashes if crash.host}))

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that failed."""
        return tuple(sorted({rank for crash in self.crashes for rank in crash.ranks}))


def crash_groups(
    environment: Mapping[str, str], selection: Selection = ALL
) -> tuple[tuple[CrashGroup, ...], tuple[BadInput, ...]]:
    """Return the crashes of the folder of all runs by cause, the most frequent first, and why others are left out."""
    found, unreadable = recorded_crashes(environment)
    wanted = replace(selection, failed=False)  # a run that has a cause has failed
    return grouped(wanted.of(found, lambda crash: crash.started, lambda _: None)), unreadable


def recorded_crashes(environment: Mapping[str, str]) -> tuple[tuple[RecordedCrash, ...], tuple[BadInput, ...]]:
    """Return every run that has a cause, the oldest first."""
    found, unreadable = entries(environment, f"crash {PREFIX}", _crash, asdict, _from_index)
    return tuple(crash for crash in found if crash.cause), unreadable


def grouped(crashes: Iterable[RecordedCrash]) -> tuple[CrashGroup, ...]:
    """Group by cause, exact ones first: a crash whose place is not known joins the largest group that it fits."""
    groups: dict[str, list[RecordedCrash]] = {}
    ordered = sorted(crashes, key=lambda crash: crash.started)
    for crash in (crash for crash in ordered if crash.cause != crash.base):
        groups.setdefault(crash.cause, []).append(crash)
    for crash in (crash for crash in ordered if crash.cause == crash.base):
        fitting = [name for name, group in groups.items() if group[0].base == crash.base]
        groups.setdefault(max(fitting, key=lambda n: len(groups[n]), default=crash.cause), []).append(crash)
    made = (CrashGroup(crashes=tuple(sorted(group, key=lambda crash: crash.started))) for group in groups.values())
    return tuple(sorted(made, key=lambda group: (-len(group.crashes), group.crashes[0].started)))


def of_same_cause(crashes: Iterable[RecordedCrash], *, cause: str, base: str) -> tuple[RecordedCrash, ...]:
    """Return the crashes of one cause, as far as each is known."""
    return tuple(crash for crash in crashes if is_same_cause((crash.cause, crash.base), (cause, base)))


def _crash(run: RunDirectory) -> RecordedCrash:
    head = run.read_head()
    last = summarize(run.events).last
    state: Condition = "finished" if last and last.kind == "run_finished" else condition(run, last)
    crash = RecordedCrash(run=head.run, condition=state, host=head.host, started=head.started)
    try:
        report = run.read_report()
    except BadInput:
        return crash
    with well_formed(f"{run.path / 'report.json'}"):
        known = report.get("fingerprint")
        if not isinstance(known, dict):
            return crash
        if not (_text(known.get("id", "")) or "").startswith(PREFIX) and (anew := _anew(run, report)):
            known = asdict(anew)
        frames = known.get("frames") or [None]
        return replace(
            crash,
            cause=_text(known.get("id", "")) or "",
            base=_text(known.get("base", "")) or "",
            exception=_text(known.get("exception", "")) or "",
            kernel=_text(known.get("kernel")),
            place=_text(frames[0]),
            found=lead_finding(run),
            ranks=_ranks(report),
        )


def _anew(run: RunDirectory, report: Mapping[str, Any]) -> Fingerprint | None:
    """Return the fingerprint of a run that another release has made, from what was recorded then.

    Its logs and stacks are read again: that release may not have looked for what names the cause now.
    """
    showed = [step for step in report["steps"] if step["outcome"] in SHOWED and step["ended"]]
    if not showed:
        return None
    step, hangs = showed[0], showed[0]["outcome"] == Status.HANG
    output = RecordedOutput(
        run_directory=run.path, files=RunFiles(run.path), observations=tuple(map(_attempt, step["attempts"]))
    )
    fresh = {**read_failure(output).results, **(read_hang(output).results if hangs else {})}
    results = {**step["results"], **fresh}
    return cause_by(
        tuple(map(_finding, report["findings"])), results, hangs=hangs, signal_number=step["ended"]["signal"]
    )


def _attempt(seen: Mapping[str, Any]) -> Observation:
    names = ("attempt", "rank", "host", "duration_s", "directory")
    ended = {name: seen["ended"][name] for name in ("by", "code", "signal", "core")}
    known = {name: seen[name] for name in names if seen.get(name) is not None}
    return from_document(
        Observation, {"step": "", "duration_s": 0.0, **known, "ended": ended, "deaths": seen.get("deaths", [])}
    )


def _finding(found: Mapping[str, Any]) -> Finding:
    chain = tuple(SourceFrame(**frame) for frame in found["chain"])
    return Finding(
        rule=found["rule"],
        level=Level(found["level"]),
        message=found["message"],
        how_known=HowKnown(found["how_known"]),
        confidence=found["confidence"],
        kernel=found["kernel"],
        chain=chain,
        location=SourceFrame(**found["location"]) if found["location"] else None,
    )


def _text(value: object) -> str | None:
    if value is not None and not isinstance(value, str):
        raise TypeError(f"{value!r} is not a text")
    return value


def _ranks(report: Mapping[str, object]) -> tuple[int, ...]:
    """Return the ranks whose attempt showed the failure."""
    found: set[int] = set()
    steps = report.get("steps")
    for step in steps if isinstance(steps, list) else ():
        found |= {int(one.get("rank", 0)) for one in step.get("attempts", ()) if one.get("reproduced")}
    return tuple(sorted(found))


def _from_index(known: Mapping[str, object]) -> RecordedCrash:
    ranks = known.get("ranks")
    return RecordedCrash(**{**known, "ranks": tuple(ranks) if isinstance(ranks, list) else ()})  # type: ignore[arg-type]


# Write crashes by their cause, as text and as JSON.


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
