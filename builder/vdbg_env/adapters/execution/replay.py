"""Runs nothing: takes what each step gave from a recording, an earlier run's folder or one written by hand.

A recording is `recording.json` next to `steps/<id>/<attempt>/<host>-<rank>/`. By hand, an attempt needs `ended.json`
with `by` and `code`, and what it printed as `stdout`; matches are looked for anew, so a runbook's own patterns count.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from vdbg_env.adapters.execution.attempt_result import OWN_FILES, observation
from vdbg_env.adapters.execution.required_literals import needles
from vdbg_env.application.ports import StepRunner
from vdbg_env.application.ports.places import RecordingHead
from vdbg_env.common.errors import BadInput
from vdbg_env.common.resources import data_dir
from vdbg_env.evidence.observation import Match, Observation
from vdbg_env.record.redaction.redact_run import redact_text
from vdbg_env.record.redaction.redaction import Redactor
from vdbg_env.runbook.invocation import Invocation
from vdbg_env.runbook.model import Matcher
from vdbg_env.supervisor.job import MatcherSpec
from vdbg_env.supervisor.output.matching import LineMatcher, Matchers, SearchTimer
from vdbg_env.supervisor.state.result_file import NAME as ENDED

SCHEMA = "vdbg-env/recording/v1"
HEAD = "recording.json"


def read_recording(folder: Path) -> RecordingHead:
    """Return the head of a recording; raises BadInput for a folder that is none."""
    try:
        document = json.loads((folder / HEAD).read_bytes())
        if document["schema"] != SCHEMA:
            raise BadInput(f"{folder / HEAD} does not follow {SCHEMA}")
        return RecordingHead(
            runbook=document["runbook"],
            recorded_on=document["recorded_on"],
            recorded_at=document.get("recorded_at", ""),
            synthetic=bool(document.get("synthetic")),
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadInput(
            f"{folder} is not a recording: its {HEAD} cannot be read",
            next_step="make one with: vdbg-env runbook NAME --record DIR -- COMMAND ...",
        ) from error


def check_recording_place(target: Path) -> None:
    """Raise BadInput unless a recording can be written to `target`, best before a run of hours."""
    if os.path.lexists(target):
        raise BadInput(f"{target} exists already", next_step="choose another folder for --record")
    if not os.access(target.absolute().parent, os.W_OK | os.X_OK) or not target.absolute().parent.is_dir():
        raise BadInput(
            f"no recording can be written to {target}",
            cause="its parent folder is missing, is not a folder, or belongs to another user",
            next_step="choose another folder for --record",
        )


def _not_recorded(folder: str, names: list[str]) -> list[str]:
    """Name what a recording leaves out: a link may lead to what no redaction saw, and a pipe has no end."""
    paths = [(name, Path(folder, name)) for name in names]
    return [n for n, p in paths if n == "supervisor.json" or p.is_symlink() or not (p.is_file() or p.is_dir())]


def write_recording(run: Path, target: Path, head: RecordingHead) -> None:
    """Copy the steps of a finished run to `target`, a folder that is not there yet; raises BadInput when it is.

    The run is redacted already, so its recording is too.
    """
    check_recording_place(target)
    temporary = target.with_name(f".{target.name}.{os.getpid()}.new")
    shutil.copytree(run / "steps", temporary / "steps", symlinks=True, ignore=_not_recorded)
    document = {
        "schema": SCHEMA,
        "runbook": head.runbook,
        "recorded_on": head.recorded_on,
        "recorded_at": head.recorded_at,
        "synthetic": head.synthetic,
    }
    (temporary / HEAD).write_text(json.dumps(document, indent=1) + "\n")
    temporary.rename(target)


class RecordingFolders:
    """A Recordings over folders of this machine."""

    def bundled(self, runbook: str) -> Path | None:
        """Return the recording that is shipped for a runbook."""
        folder = data_dir("runbooks") / "recordings" / runbook
        return folder if folder.is_dir() else None

    def check_target(self, folder: Path) -> None:
        """Raise BadInput unless a recording can be written there."""
        check_recording_place(folder)

    def read(self, folder: Path) -> RecordingHead:
        """Return the head of a recording; raises BadInput for a folder that is not a recording."""
        return read_recording(folder)

    def write(self, run: Path, folder: Path, head: RecordingHead) -> None:
        """Write the recording of a run; raises BadInput when the folder exists already."""
        write_recording(run, folder, head)

    def player(self, folder: Path, redactor: Redactor) -> StepRunner:
        """Return what plays a recording in place of running steps."""
        return Replay(folder.absolute(), redactor)


class Replay:
    """A StepRunner that plays a recording, which others may have made: no link is followed, and all is redacted."""

    def __init__(self, folder: Path, redactor: Redactor) -> None:
        self._folder = folder
        self._redactor = redactor

    def start(self, invocation: Invocation, directory: Path) -> ReplayedStep:
        """Copy the recorded attempt into the run; see `StepRunner.start`."""
        source = self._recorded(invocation)
        if source is None:
            why = f"the recording {self._folder} holds no step {invocation.step!r}"
            (directory / ENDED).write_text(json.dumps({"by": "not_started", "message": why}))
        else:
            shutil.copytree(source, directory, dirs_exist_ok=True, ignore=_not_recorded, copy_function=_copy)
            self._redact(directory)
        return ReplayedStep(invocation, directory.resolve())

    def adopt(self, invocation: Invocation, directory: Path) -> ReplayedStep | None:
        """Take over an attempt whose files were copied whole; `ended.json` alone does not show that, so copy again."""
        return None

    def _recorded(self, invocation: Invocation) -> Path | None:
        """Return the folder of this attempt, or of the last one before it."""
        home = self._folder / "steps" / invocation.step
        attempts = sorted(int(p.name) for p in _folders(home) if p.name.isdigit())
        fitting = [n for n in attempts if n <= invocation.attempt] or attempts[:1]
        ranks = _folders(home / str(fitting[-1])) if fitting else []
        return ranks[0] if ranks else None

    def _redact(self, directory: Path) -> None:
        """Redact the texts that a supervisor wrote; other files are masked as those of any step are."""
        for name in OWN_FILES:
            path = directory / name
            if not path.is_file():
                continue
            try:
                document = json.loads(path.read_bytes()) if path.suffix == ".json" else None
            except (ValueError, RecursionError):
                document = None
            if isinstance(document, dict):
                path.write_text(json.dumps(self._redactor.document(document)))
            else:
                redact_text(path, self._redactor)


def _folders(folder: Path) -> list[Path]:
    """Return the folders in a folder; a link is not one, and leads nowhere."""
    if folder.is_symlink() or not folder.is_dir():
        return []
    return sorted(p for p in folder.iterdir() if p.is_dir() and not p.is_symlink())


class ReplayedStep:
    """A StartedStep that has ended before it began."""

    def __init__(self, invocation: Invocation, directory: Path) -> None:
        self._invocation = invocation
        self._directory = directory

    def wait(self, timeout_s: float | None = None) -> Observation:
        """Return what was recorded, with the runbook's own patterns looked for in it.

        What the workers had in their environment belongs to the machine of the recording and is left out.
        """
        seen = observation(self._invocation, self._directory, ())
        return replace(seen, matched=_matched(self._invocation.matchers, self._directory), workers=())

    def cancel(self, *, firmly: bool = False) -> None:
        """Do nothing: there is nothing to end."""


def _matched(matchers: tuple[Matcher, ...], directory: Path) -> dict[str, tuple[Match, ...]]:
    found: dict[str, tuple[Match, ...]] = {}
    for source, names in (("output", ("stdout", "stderr")), ("kernel-log", ("kernel.log",))):
        lines = [
            LineMatcher(MatcherSpec(name=m.name, pattern=m.pattern, take=m.take, needles=needles(m.pattern)))
            for m in matchers
            if m.source == source
        ]
        together = Matchers(lines, SearchTimer())
        for name in names:
            number, offset = 0, 0
            for block in _blocks(directory / name):
                together.look(block, name, number, offset)
                number += block.count(b"\n")
                offset += len(block)
        found |= {m.spec.name: tuple(Match(**entry._asdict()) for entry in m.kept) for m in lines if m.kept}
    return found


def _blocks(path: Path) -> Iterator[bytes]:
    """Yield a file in blocks of whole lines."""
    if not path.is_file():
        return
    with path.open("rb") as file:
        while lines := file.readlines(1 << 20):
            yield b"".join(lines)


def _copy(source: str, target: str) -> Any:
    """Copy a file and its time; not its mode, which may be set-uid."""
    if os.path.exists(target):  # noqa: PTH110
        os.unlink(target)  # noqa: PTH108
    copied = shutil.copyfile(source, target, follow_symlinks=False)
    seen = os.stat(source, follow_symlinks=False)  # noqa: PTH116
    os.utime(target, ns=(seen.st_atime_ns, seen.st_mtime_ns))
    return copied
