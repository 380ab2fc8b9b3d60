"""Steps whose text artifacts get pseudonyms for hosts and addresses as soon as the step has ended.

The output gets them on its way to the disk (`supervisor`); what the workload writes into its step's folder by itself,
such as logs of NCCL, can be changed only afterwards. Binary files keep theirs: another length would break them.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

from vdbg_env.application.ports import StartedStep, StepRunner
from vdbg_env.evidence.observation import Artifact, Observation
from vdbg_env.record.redaction.redact_run import redact_text
from vdbg_env.record.redaction.redaction import Redactor
from vdbg_env.runbook.invocation import Invocation

_HEAD = 8192  # a NUL in the first bytes is the mark of a binary file


class PseudonymousSteps:
    """A StepRunner over another."""

    def __init__(self, runner: StepRunner, redactor: Redactor) -> None:
        self._runner = runner
        self._redactor = redactor

    def start(self, invocation: Invocation, directory: Path) -> StartedStep:
        """Start an attempt; see `StepRunner.start`."""
        return _Step(self._runner.start(invocation, directory), directory, self._redactor)

    def adopt(self, invocation: Invocation, directory: Path) -> StartedStep | None:
        """Take over an attempt; see `StepRunner.adopt`."""
        step = self._runner.adopt(invocation, directory)
        return step and _Step(step, directory, self._redactor)


class _Step:
    def __init__(self, step: StartedStep, directory: Path, redactor: Redactor) -> None:
        self._step = step
        self._run = directory.resolve().parents[3]
        self._redactor = redactor

    def wait(self, timeout_s: float | None = None) -> Observation | None:
        """Wait for the end; what was left behind has its pseudonyms before it is returned."""
        seen = self._step.wait(timeout_s)
        if seen is None:
            return None
        artifacts = {name: tuple(map(self._shown, found)) for name, found in seen.artifacts.items()}
        return replace(seen, artifacts=artifacts)

    def cancel(self, *, firmly: bool = False) -> None:
        """Have the tree ended; see `StartedStep.cancel`."""
        self._step.cancel(firmly=firmly)

    def _shown(self, artifact: Artifact) -> Artifact:
        path = self._run / artifact.path
        with path.open("rb") as file:
            if b"\0" in file.read(_HEAD):
                return artifact
        if not redact_text(path, self._redactor):
            return artifact
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        return replace(artifact, size=path.stat().st_size, sha256=digest)
