"""The fingerprint of a run's crash, from what its steps found."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator, Mapping, Sequence

from gpucore.dwarf import SourceFrame, parse_frame
from vdbg_env.evidence.finding import Finding
from vdbg_env.evidence.fingerprint import Crash, Fingerprint, fingerprint
from vdbg_env.evidence.logs.process_death import role_of
from vdbg_env.record.progress import Progress
from vdbg_env.runbook.model import Data, Status
from vdbg_env.runbook.state import Finish, Verdict

CRASHED = {Verdict.REPRODUCED, Verdict.HANG, Verdict.FAILED}
SHOWED = {Status.REPRODUCED, Status.HANG, Status.FAIL}
_DEPTH = re.compile(r"\A.*? \(\d+\): ", re.DOTALL)


def cause_of(walk: Progress, finish: Finish, findings: Sequence[Finding]) -> Fingerprint | None:
    """Return the cause of what a run saw: by its findings, and by the first step in which it showed."""
    showed = [visit.record for visit in walk.visits if visit.record.outcome in SHOWED and visit.record.ended]
    if finish.verdict not in CRASHED or not showed:
        return None
    first = showed[0]
    number = first.ended.signal if first.ended else None
    return cause_by(findings, first.results, hangs=first.outcome is Status.HANG, signal_number=number)


def cause_by(
    findings: Sequence[Finding], results: Mapping[str, Data], *, hangs: bool, signal_number: int | None
) -> Fingerprint | None:
    """Return the cause by all findings of a run, and by the results of the step in which it showed first."""
    stuck = _text(results.get("stuck"))
    hangs = hangs and not (results.get("raised_before_hang") is True and stuck in {None, "waits"})
    stack = tuple(_places(results.get("waiting_in" if hangs else "stack")))
    if hangs:
        stack = tuple(_places([results["stuck_in"]] if "stuck_in" in results else [])) if stuck else _sorted(stack)
    return fingerprint(
        Crash(
            findings=findings,
            error=_text(results.get("error")),
            stack=stack,
            failure=_text(results.get("failure")),
            signal=_signal(signal_number),
            hang=hangs,
            stuck=stuck,
            died=_text(results.get("died")),
            process=role_of(_text(results.get("stuck_process" if hangs else "failed_process")) or ""),
            crashed=tuple(_places(results.get("crashed_stack"))),
        )
    )


def _sorted(stack: Sequence[SourceFrame]) -> tuple[SourceFrame, ...]:
    return tuple(sorted(set(stack), key=str))


def _places(value: Data) -> Iterator[SourceFrame]:
    for text in value if isinstance(value, list) else ():
        frame = parse_frame(_DEPTH.sub("", str(text)))
        if frame:
            yield frame


def _text(value: Data) -> str | None:
    return value if isinstance(value, str) else None


def _signal(number: int | None) -> str | None:
    try:
        return None if number is None else signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
