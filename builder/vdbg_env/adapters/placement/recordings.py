"""Recordings in folders of this machine."""

from __future__ import annotations

from pathlib import Path

from vdbg_env.adapters.execution.replay import Replay, check_recording_place, read_recording, write_recording
from vdbg_env.adapters.placement.answered import AnsweredSteps
from vdbg_env.adapters.placement.recorded_ranks import RecordedRanks
from vdbg_env.application.ports.places import RecordingHead
from vdbg_env.application.ports.steps import StepPlacement
from vdbg_env.common.resources import data_dir
from vdbg_env.record.redaction.redaction import Redactor


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

    def player(self, folder: Path, redactor: Redactor) -> StepPlacement:
        """Return what plays a recording in place of running steps."""
        return RecordedRanks(Replay(folder.absolute(), redactor))

    def answered(self, run: Path, placement: StepPlacement, redactor: Redactor) -> StepPlacement:
        """Return what takes from a run what it has seen, and starts the rest."""
        return AnsweredSteps(run, placement, redactor)
