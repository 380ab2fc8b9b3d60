"""Print the progress of a run on the error stream, one line per event."""

from __future__ import annotations

import sys
from pathlib import Path

from vdbg_env.common.printable import printable
from vdbg_env.record.event_log import Event
from vdbg_env.record.progress import Progress, ranks_of
from vdbg_env.report.plain_text import duration
from vdbg_env.report.run.phrases import ended
from vdbg_env.runbook.state import StepRecord


class RunProgress:
    """A listener of a run's events."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._shown = 0

    def __call__(self, event: Event, progress: Progress) -> None:
        """Print an event."""
        match event.kind:
            case "run_started":
                self._line(event, f"run {progress.state.runbook.name}, kept in {self._directory}")
            case "run_resumed":
                self._line(event, f"continuing {self._directory}, {len(progress.visits)} steps done")
                self._shown = len(progress.visits)
            case "attempt_started":
                title = progress.state.runbook.step(event.data["step"]).title
                self._line(event, f"{event.data['step']} #{event.data['attempt']}: {title}")
            case "attempt_ended":
                for one in (last := ranks_of(event)):
                    rank = f" rank {one.rank}" if last[1:] else ""
                    text = f"{ended(one.ended)} after {duration(one.duration_s)}"
                    self._line(event, f"{one.step} #{one.attempt}{rank}: {text}")
            case "step_finished":
                for visit in progress.visits[self._shown :]:
                    self._line(event, f"{visit.step.id} -> {_outcome(visit.record)}")
            case "branched":
                self._line(event, f"continuing with runbook {event.data['runbook']}")
            case "run_interrupted":
                self._line(event, f"{event.data.get('why') or 'interrupted'}; what was seen is kept")
        self._shown = len(progress.visits)

    def _line(self, event: Event, text: str) -> None:
        print(f"[{event.elapsed_s:8.1f} s] {printable(text)}", file=sys.stderr, flush=True)


def _outcome(record: StepRecord) -> str:
    if record.skipped_because:
        return f"skipped: {record.skipped_because}"
    if record.choice:
        return f"answered {record.choice}"
    return f"{record.outcome}: {record.message}" if record.message else str(record.outcome)
