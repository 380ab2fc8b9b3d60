"""Tells how a run gets on, one plain line an event, on the error stream."""

from __future__ import annotations

import sys
from pathlib import Path

from vdbg_env.record.event_log import Event
from vdbg_env.record.progress import Walk
from vdbg_env.report.plain_text import duration, printable
from vdbg_env.report.run.phrases import ended
from vdbg_env.runbook.state import StepRecord


class RunProgress:
    """A listener of a run's events."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._told = 0

    def __call__(self, event: Event, walk: Walk) -> None:
        """Print what the event means to who waits."""
        match event.kind:
            case "run_started":
                self._line(event, f"run {walk.state.runbook.name}, kept in {self._directory}")
            case "run_resumed":
                self._line(event, f"going on with {self._directory}, {len(walk.walked)} steps done")
                self._told = len(walk.walked)
            case "attempt_started":
                title = walk.state.runbook.step(event.data["step"]).title
                self._line(event, f"{event.data['step']} #{event.data['attempt']}: {title}")
            case "attempt_ended" if walk.observations:
                seen = walk.observations[-1]
                self._line(event, f"{seen.step} #{seen.attempt}: {ended(seen.ended)} after {duration(seen.duration_s)}")
            case "step_finished":
                for walked in walk.walked[self._told :]:
                    self._line(event, f"{walked.step.id} -> {_word(walked.record)}")
            case "branched":
                self._line(event, f"going on with runbook {event.data['runbook']}")
            case "run_interrupted":
                self._line(event, "interrupted; what was seen is kept")
        self._told = len(walk.walked)

    def _line(self, event: Event, text: str) -> None:
        print(f"[{event.elapsed_s:8.1f} s] {printable(text)}", file=sys.stderr, flush=True)


def _word(record: StepRecord) -> str:
    if record.skipped_because:
        return f"skipped: {record.skipped_because}"
    if record.choice:
        return f"answered {record.choice}"
    return f"{record.outcome}: {record.message}" if record.message else str(record.outcome)
