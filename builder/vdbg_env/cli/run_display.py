"""What a person sees of a run, and the answers to its questions."""

from __future__ import annotations

import os
import select
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self

from vdbg_env.common.console import duration, note, printable
from vdbg_env.common.files import open_file
from vdbg_env.record.event_log import Event
from vdbg_env.record.progress import Progress, ranks_of
from vdbg_env.report.model import ended
from vdbg_env.runbook.state import AskPerson, StepRecord

_LOOK_S = 0.25  # how long a Ctrl-C may wait to be seen


class AtTerminal:
    """Asks on the error stream and reads one line; no answer in time is none, nor is one that was `interrupted`."""

    def __init__(self, interrupted: Callable[[], bool]) -> None:
        self._interrupted = interrupted

    def ask(self, question: AskPerson) -> str | None:
        """Return the choice made, or None after the question's time."""
        choices = ", ".join(f"[{c}]" if c == question.default else c for c in question.choices)
        while True:
            prompt = f"\n{question.prompt}\n  {choices} ({question.timeout_s:g} s): "
            print(printable(prompt, keep="\n"), end="", file=sys.stderr, flush=True)
            if not self._has_answer(question.timeout_s):
                if not self._interrupted():
                    print(f"no answer, taking {question.default}", file=sys.stderr)
                return None
            line = sys.stdin.readline()
            answer = line.strip()
            if answer in question.choices:
                return answer
            if not answer:
                return None
            print(f"{answer!r} is none of them", file=sys.stderr)

    def _has_answer(self, timeout_s: float) -> bool:
        """Wait for a line; signals are only noted, and would not end one long wait."""
        until = time.monotonic() + timeout_s
        while not self._interrupted() and (left := until - time.monotonic()) > 0:
            if select.select([sys.stdin], [], [], min(left, _LOOK_S))[0]:
                return not self._interrupted()
        return False


class Nobody:
    """Answers nothing: each question takes its default at once."""

    def ask(self, question: AskPerson) -> str | None:
        """Return None."""
        return None


# Print the progress of a run on the error stream: one line per event, and what a step that runs waits for.
#
# On a terminal that is one line, written anew each second; elsewhere a line after a minute, and then every five.


_LIVE_S = 1.0
_FIRST_S, _THEN_S = 60.0, 300.0
_TAIL = 4096  # bytes of the output in which its last line is looked for
_LINE_SHOWN = 160  # characters of it where there is no terminal
WAITS = "waits.txt"  # what a supervisor says that it waits for, in the folder of a rank
_OF_ITSELF = "its end"


class RunProgress:
    """A listener of a run's events, which also shows what the running step waits for."""

    def __init__(self) -> None:
        self._directory = Path()
        self._shown = 0
        self._step = ""  # the one that runs, with its attempt
        self._folder = Path()
        self._began = self._began_s = self._due = 0.0
        self._live = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self._written = False

    def of_run(self, directory: Path) -> Self:
        """Take the folder of the run."""
        self._directory = directory
        return self

    def notice(self, text: str) -> None:
        """Print one line that is no event."""
        self._erase()
        note(text)

    def waits(self) -> None:
        """Show how long the step has run, what it waits for, and the last line that the workload printed."""
        now = time.monotonic()
        if not self._step or now < self._due:
            return
        self._due = now + (_LIVE_S if self._live else _THEN_S)
        passed, what = now - self._began, _said(self._folder) or _OF_ITSELF
        text = f"{self._step}: {duration(passed)}, waits for {what}"
        last = printable(_last_line(self._folder))
        if not self._live:
            last = last if len(last) <= _LINE_SHOWN else f"{last[:_LINE_SHOWN]}..."
            self._print(self._began_s + passed, f"{text}; it prints: {last}" if last else text)
            return
        line = printable(f"{text} | {last}" if last else text)
        width = shutil.get_terminal_size((100, 40)).columns - 1
        print(f"\r\x1b[K{line[:width]}", end="", file=sys.stderr, flush=True)
        self._written = True

    def __call__(self, event: Event, progress: Progress) -> None:
        """Print an event."""
        self._erase()
        self._follow(event)
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

    def _follow(self, event: Event) -> None:
        """Take note of the attempt that runs now, or that none does."""
        self._step = ""
        if event.kind == "attempt_started":
            self._step = f"{event.data['step']} #{event.data['attempt']}"
            self._folder = self._directory / event.data["directory"]
            self._began, self._began_s = time.monotonic(), event.elapsed_s
            self._due = self._began + (_LIVE_S if self._live else _FIRST_S)

    def _erase(self) -> None:
        if self._written:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
            self._written = False

    def _line(self, event: Event, text: str) -> None:
        self._print(event.elapsed_s, text)

    def _print(self, elapsed_s: float, text: str) -> None:
        print(f"[{elapsed_s:8.1f} s] {printable(text)}", file=sys.stderr, flush=True)


def _said(folder: Path) -> str:
    """Return what a supervisor of the attempt says that it waits for, the latest of them; empty where none does."""
    return next((text for text in _tails(folder, WAITS) if text), "")


def _last_line(folder: Path) -> str:
    """Return the last line that is not empty of what any rank printed last."""
    for text in _tails(folder, "std*"):
        lines = [line.strip() for line in text.replace("\r", "\n").splitlines() if line.strip()]
        if lines:
            return lines[-1]
    return ""


def _tails(folder: Path, pattern: str) -> list[str]:
    """Return the ends of the files of that name in the attempt's folder and in those of its ranks, newest first."""
    found = []
    for path in (*folder.glob(pattern), *folder.glob(f"*/{pattern}")):
        try:
            with os.fdopen(open_file(path, os.O_RDONLY), "rb") as file:  # the workload may have put a pipe there
                size = os.fstat(file.fileno()).st_size
                file.seek(max(0, size - _TAIL))
                found.append((os.fstat(file.fileno()).st_mtime, file.read(_TAIL).decode("utf-8", "replace")))
        except OSError:
            continue  # it was removed since, or is no file
    return [text for _, text in sorted(found, reverse=True)]


def _outcome(record: StepRecord) -> str:
    if record.skipped_because:
        return f"skipped: {record.skipped_because}"
    if record.choice:
        return f"answered {record.choice}"
    return f"{record.outcome}: {record.message}" if record.message else str(record.outcome)
