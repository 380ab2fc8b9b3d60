"""Steps whose artifacts get pseudonyms for hosts and addresses as soon as the step has ended.

The output gets them on its way to the disk (`supervisor`); what the workload writes into its step's folder by itself,
such as logs of NCCL, can be changed only afterwards. In binary files pseudonyms have the length of what they replace.
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

from vdbg_env.adapters.execution.attempt_result import Check, InThread, Stopped, digest_of
from vdbg_env.adapters.execution.supervised_step import READ_LIMIT_S, READ_MORE_S
from vdbg_env.application.ports.steps import Layout, StartedAttempt, StepPlacement
from vdbg_env.evidence.observation import Artifact, Observation
from vdbg_env.record.redaction.compressed import mask_artifact
from vdbg_env.record.redaction.redact_run import redact_text
from vdbg_env.record.redaction.redaction import Redactor
from vdbg_env.runbook.invocation import Invocation

_HEAD = 8192  # a NUL in the first bytes is the mark of a binary file
_KEPT = (
    "not all artifacts have pseudonyms, as the run was being ended: vdbg-env runs redact --hosts replaces what is left"
)


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
        self._naming: InThread[tuple[Observation, ...]] | None = None
        self._cancelled = False

    def wait(self, timeout_s: float | None = None) -> tuple[Observation, ...] | None:
        """Wait for the end; what was left behind has its pseudonyms before it is returned."""
        until = None if timeout_s is None else time.monotonic() + timeout_s
        if self._naming is None:
            seen = self._attempt.wait(timeout_s)
            if seen is None:
                return None
            self._naming = InThread(lambda check: tuple(self._with_pseudonyms(one, check) for one in seen))
            if self._cancelled:
                self._naming.stop(READ_LIMIT_S)
        return self._naming.result(None if until is None else max(0.0, until - time.monotonic()))

    def cancel(self, *, firmly: bool = False) -> None:
        """Have all ranks ended; see `StartedAttempt.cancel`."""
        self._cancelled = True
        if self._naming is None:
            self._attempt.cancel(firmly=firmly)
        else:
            self._naming.stop(0.0 if firmly else READ_MORE_S)

    def _with_pseudonyms(self, seen: Observation, check: Check) -> Observation:
        notes: list[str] = []
        try:
            artifacts = {
                name: tuple(self._shown(one, notes, check) for one in found) for name, found in seen.artifacts.items()
            }
        except Stopped:
            artifacts, notes = dict(seen.artifacts), [*notes, _KEPT]
        return replace(seen, artifacts=artifacts, notes=(*seen.notes, *notes))

    def _shown(self, artifact: Artifact, notes: list[str], check: Check) -> Artifact:
        path = self._run / artifact.path
        with path.open("rb") as file:
            is_text = b"\0" not in file.read(_HEAD)
        if is_text:
            changed = redact_text(path, self._redactor, check=check)
        else:
            looked = mask_artifact(path, (), pseudonyms=self._redactor.pseudonyms, check=check)
            notes += [f"{path.name}: {looked.note}"] if looked.note else []
            changed = looked.masked > 0
        if not changed or not path.exists():  # it was withheld
            return artifact
        return replace(artifact, size=path.stat().st_size, sha256=digest_of(path, check))
