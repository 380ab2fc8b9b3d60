"""Recorded crashes by their cause, as text and as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from gpucore.dwarf import SourceFrame
from gpucore.mangling import short_name
from vdbg_env.common.console import json_text, printable
from vdbg_env.common.errors import BadInput
from vdbg_env.evidence.finding import Finding, HowKnown, Level, Observation
from vdbg_env.record.event_log import summarize, well_formed
from vdbg_env.record.progress import from_document
from vdbg_env.record.run_directory import RunDirectory, RunFiles
from vdbg_env.report.assemble import SHOWED, cause_by
from vdbg_env.run.builtin_readers import read_failure, read_hang
from vdbg_env.run.history import ALL, Condition, Selection, condition, entries, lead_finding
from vdbg_env.run.library import RecordedOutput
from vdbg_env.runbook.judge import PREFIX, Fingerprint, is_same_cause
from vdbg_env.runbook.model import Status


@dataclass(frozen=True, kw_only=True)
class RecordedCrash:
    """A run as far as its cause is concerned; `cause` and `base` are empty where it has no fingerprint.

    `started` is ISO 8601 in UTC. `ranks` are those that failed, where a step ran on several. `culprit` is the tensor,
    or the argument of the kernel, that the bad value of a GPU exception was loaded from.
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
    culprit: str | None = None


@dataclass(frozen=True, kw_only=True)
class CrashGroup:
    """All crashes of one cause, the oldest first; the one with the most detail describes it."""

    crashes: tuple[RecordedCrash, ...]

    @property
    def telling(self) -> RecordedCrash:
        """The crash whose place is known best, the newest of equals."""
        return max(
            self.crashes,
            key=lambda c: (c.cause != c.base, c.culprit is not None, c.place is not None, c.started),
        )

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
    found, unreadable = entries(environment, f"crash of {PREFIX}", _crash, asdict, _from_index)
    return tuple(crash for crash in found if crash.cause), unreadable


def grouped(crashes: Iterable[RecordedCrash]) -> tuple[CrashGroup, ...]:
    """Group by what the bad value came from, else by cause: the kernel that fails first is often only the victim.

    A crash of which that is not known joins the group of its cause; one whose place is not known either, the largest
    group that it fits.
    """
    groups: dict[str, list[RecordedCrash]] = {}
    ordered = sorted(crashes, key=lambda crash: crash.started)
    for crash in (crash for crash in ordered if crash.culprit):
        groups.setdefault(f"{crash.culprit}", []).append(crash)
    known = {crash.cause: name for name, group in groups.items() for crash in group}
    for crash in (crash for crash in ordered if crash.cause != crash.base and not crash.culprit):
        groups.setdefault(known.get(crash.cause, crash.cause), []).append(crash)
    ordered = [crash for crash in ordered if not crash.culprit]
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
            culprit=_culprit(report),
        )


def _culprit(report: Mapping[str, Any]) -> str | None:
    """Return what the bad value of the lead finding was loaded from: a tensor by its memory map, else an argument."""
    lead = next((found for found in report["findings"] if found["id"] == report["lead"]), None)
    for load in ((lead or {}).get("address") or {}).get("loads", ()):
        base = load["base"]
        if base and base.get("points_to"):
            return _text(base["points_to"])
        if base and base["argument"] and lead and lead["kernel"]:
            return f"argument {base['argument']} of {short_name(lead['kernel'])}"
    return None


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


def as_json(groups: Iterable[CrashGroup], unreadable: Iterable[BadInput]) -> str:
    """Return recorded crashes by cause as docs/schemas/runs-v1.schema.json describes them."""
    return json_text(
        {
            "schema": "vdbg-env/runs/v1",
            "groups": [_group_json(group) for group in groups],
            "unreadable": list(map(str, unreadable)),
        }
    )


def _group_json(group: CrashGroup) -> dict[str, Any]:
    told, crashes = group.telling, group.crashes
    return {
        "cause": told.cause,
        "base": told.base,
        "exception": told.exception,
        "kernel": told.kernel,
        "place": told.place,
        "found": told.found,
        "culprit": told.culprit,
        "crashes": len(crashes),
        "first": crashes[0].started,
        "last": crashes[-1].started,
        "hosts": group.hosts,
        "ranks": group.ranks,
        "runs": [crash.run for crash in crashes],
    }


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
    if best.culprit:
        yield f"       the bad value came from {best.culprit}"
    newest = [crash.run for crash in reversed(group.crashes)][:_RUNS_SHOWN]
    more = f" and {count - len(newest)} more" if count > len(newest) else ""
    yield f"       {', '.join(newest)}{more}"
