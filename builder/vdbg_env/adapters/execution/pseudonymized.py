"""Steps whose text artifacts get pseudonyms for hosts and addresses as soon as the step has ended.

The output gets them on its way to the disk (`supervisor`); what the workload writes into its step's folder by itself,
such as logs of NCCL, can be changed only afterwards. Binary files keep theirs: another length would break them.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

from vdbg_env.application.ports.steps import Layout, StartedAttempt, StepPlacement
from vdbg_env.evidence.observation import Artifact, Observation
from vdbg_env.record.redaction.redact_run import redact_text
from vdbg_env.record.redaction.redaction import Redactor
from vdbg_env.runbook.invocation import Invocation

_HEAD = 8192  # a NUL in the first bytes is the mark of a binary file


class PseudonymousSteps:
    """A StepPlacement over another."""

    def __init__(self, placement: StepPlacement, redactor: Redactor) -> None:
        self._placement = placement
        self._redactor = redactor

    def layout(self, invocation: Invocation) -> Layout:
        """Return the ranks of the other; see `StepPlacement.layout`."""
        return self._placement.layout(invocation)

    def start(self, invocation: Invocation, directory: Path) -> StartedAttempt:
        """Start an attempt; see `StepPlacement.start`."""
        return _Attempt(self._placement.start(invocation, directory), directory, self._redactor)

    def adopt(self, invocation: Invocation, directory: Path) -> StartedAttempt | None:
        """Take over an attempt; see `StepPlacement.adopt`."""
        attempt = self._placement.adopt(invocation, directory)
        return attempt and _Attempt(attempt, directory, self._redactor)


class _Attempt:
    def __init__(self, attempt: StartedAttempt, directory: Path, redactor: Redactor) -> None:
        self._attempt = attempt
        self._run = directory.resolve().parents[2]
        self._redactor = redactor

    def wait(self, timeout_s: float | None = None) -> tuple[Observation, ...] | None:
        """Wait for the end; what was left behind has its pseudonyms before it is returned."""
        seen = self._attempt.wait(timeout_s)
        return None if seen is None else tuple(map(self._with_pseudonyms, seen))

    def _with_pseudonyms(self, seen: Observation) -> Observation:
        artifacts = {name: tuple(map(self._shown, found)) for name, found in seen.artifacts.items()}
        return replace(seen, artifacts=artifacts)

    def cancel(self, *, firmly: bool = False) -> None:
        """Have all ranks ended; see `StartedAttempt.cancel`."""
        self._attempt.cancel(firmly=firmly)

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
