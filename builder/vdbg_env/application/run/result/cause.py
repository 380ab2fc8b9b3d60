"""The fingerprint of a run's crash, from what its steps found."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator, Sequence

from vdbg_env.cuda.lines.source_frame import SourceFrame
from vdbg_env.evidence.finding import Finding
from vdbg_env.evidence.fingerprint import Crash, Fingerprint, fingerprint
from vdbg_env.record.progress import Progress
from vdbg_env.runbook.model import Data, Status
from vdbg_env.runbook.state import Finish, StepRecord, Verdict

_CRASHED = {Verdict.REPRODUCED, Verdict.HANG, Verdict.FAILED}
_SHOWED = {Status.REPRODUCED, Status.HANG, Status.FAIL}
_PLACE = re.compile(r"(?:.*? \(\d+\): )?(?P<file>.+?):(?P<line>\d+)(?: in (?P<function>.+))?", re.DOTALL)


def cause_of(walk: Progress, finish: Finish, findings: Sequence[Finding]) -> Fingerprint | None:
    """Return the cause of what a run saw: by its findings, and by the first step in which it showed."""
    showed = [visit.record for visit in walk.visits if visit.record.outcome in _SHOWED and visit.record.ended]
    if finish.verdict not in _CRASHED or not showed:
        return None
    first = showed[0]
    hangs = first.outcome is Status.HANG
    stack = _places(first.results.get("waiting_in" if hangs else "stack"))
    return fingerprint(
        Crash(
            findings=findings,
            error=_text(first.results.get("error")),
            stack=tuple(sorted(set(stack), key=str) if hangs else stack),
            failure=_text(first.results.get("failure")),
            signal=_signal(first),
            hang=hangs,
        )
    )


def _places(value: Data) -> Iterator[SourceFrame]:
    for text in value if isinstance(value, list) else ():
        found = _PLACE.fullmatch(str(text))
        if found:
            yield SourceFrame(function=found["function"], file=found["file"], line=int(found["line"]))


def _text(value: Data) -> str | None:
    return value if isinstance(value, str) else None


def _signal(record: StepRecord) -> str | None:
    number = record.ended.signal if record.ended else None
    try:
        return None if number is None else signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
