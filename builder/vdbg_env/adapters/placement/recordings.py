"""Recordings in folders of this machine."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import asdict
from pathlib import Path

from vdbg_env.adapters.execution.replay import Replay
from vdbg_env.adapters.placement.answered import AnsweredSteps
from vdbg_env.adapters.placement.recorded_ranks import RecordedRanks
from vdbg_env.application.ports.places import RecordingHead
from vdbg_env.application.ports.steps import StepPlacement
from vdbg_env.common.errors import BadInput
from vdbg_env.common.reading import read_document
from vdbg_env.common.resources import data_dir
from vdbg_env.record.atomic_write import prepared
from vdbg_env.record.redaction.redaction import Redactor

SCHEMA = "vdbg-env/recording/v1"
HEAD = "recording.json"


class RecordingFolders:
    """A Recordings over folders of this machine."""

    def bundled(self, runbook: str) -> Path | None:
        """Return the recording that is shipped for a runbook."""
        folder = data_dir("runbooks") / "recordings" / runbook
        return folder if folder.is_dir() else None

    def check_target(self, folder: Path) -> None:
        """Raise BadInput unless a recording can be written there, best before a run of hours."""
        if os.path.lexists(folder):
            raise BadInput(f"{folder} exists already", next_step="choose another folder for --record")
        if not os.access(folder.absolute().parent, os.W_OK | os.X_OK) or not folder.absolute().parent.is_dir():
            raise BadInput(
                f"no recording can be written to {folder}",
                cause="its parent folder is missing, is not a folder, or belongs to another user",
                next_step="choose another folder for --record",
            )

    def read(self, folder: Path) -> RecordingHead:
        """Return the head of a recording; raises BadInput for a folder that is none."""
        try:
            document = read_document(folder / HEAD)
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

    def write(self, run: Path, folder: Path, head: RecordingHead) -> None:
        """Copy the steps of a finished run, which is redacted, to a new folder; raises BadInput where there is one."""
        self.check_target(folder)
        with prepared(folder) as made:
            shutil.copytree(run / "steps", made / "steps", symlinks=True, ignore=_not_recorded)
            (made / HEAD).write_text(json.dumps({"schema": SCHEMA, **asdict(head)}, indent=1) + "\n")

    def player(self, folder: Path, redactor: Redactor) -> StepPlacement:
        """Return what plays a recording in place of running steps."""
        return RecordedRanks(Replay(folder.absolute(), redactor))

    def answered(self, run: Path, placement: StepPlacement, redactor: Redactor) -> StepPlacement:
        """Return what takes from a run what it has seen, and starts the rest."""
        return AnsweredSteps(run, placement, redactor)


def _not_recorded(folder: str, names: list[str]) -> list[str]:
    """Name what a recording leaves out: a link may lead to what no redaction saw, and a pipe has no end."""
    paths = [(name, Path(folder, name)) for name in names]
    return [n for n, p in paths if n == "supervisor.json" or p.is_symlink() or not (p.is_file() or p.is_dir())]
