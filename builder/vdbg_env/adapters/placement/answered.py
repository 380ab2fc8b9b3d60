"""Takes what another run has seen already in place of running the same once more."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from vdbg_env.adapters.execution.replay import Replay
from vdbg_env.adapters.placement.one_rank import StartedRanks
from vdbg_env.adapters.placement.recorded_ranks import RecordedRanks
from vdbg_env.application.ports.steps import Layout, StartedAttempt, StepPlacement
from vdbg_env.common.reading import read_document
from vdbg_env.evidence.observation import EndedBy, Observation
from vdbg_env.record.redaction.redaction import Redactor
from vdbg_env.runbook.invocation import Invocation

# What makes a failing process leave more behind, or gives it the time to: it changes no failure.
_ARMS = re.compile(
    r"CUDA_COREDUMP_|CUDA_ENABLE_\w*COREDUMP|TORCH_NCCL_|VLLM_RAY_EXTRA_ENV_|VLLM_WORKER_SHUTDOWN_TIMEOUT_SECONDS$"
    r"|VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS$"
)


_FAULT_HANDLER = "PYTHONFAULTHANDLER"


@dataclass(frozen=True, kw_only=True)
class _Recorded:
    """An attempt of the other run: the command as it was started, redacted, and what it changed."""

    step: str
    folder: Path
    argv: tuple[str, ...]
    changed: Mapping[str, str | None]


class AnsweredSteps:
    """A StepPlacement that lets `placement` start what `run` has no answer to; secrets are those of `redactor`."""

    def __init__(self, run: Path, placement: StepPlacement, redactor: Redactor) -> None:
        self._run = run
        self._placement = placement
        self._redactor = redactor
        self._recorded = tuple(_attempts(run))

    def layout(self, invocation: Invocation) -> Layout:
        """Return the ranks: those that were recorded, where they answer the step."""
        found = self._answer(invocation)
        return self._placement.layout(invocation) if found is None else self._ranks(found).layout(invocation)

    def start(self, invocation: Invocation, directory: Path) -> StartedAttempt:
        """Copy what was recorded, or start the attempt; see `StepPlacement.start`."""
        found = self._answer(invocation)
        if found is None:
            return self._placement.start(invocation, directory)
        note = f"taken from step {found.step!r} of run {self._run.name}, and not run again"
        return AnsweredAttempt(self._ranks(found).start(invocation, directory), note)

    def adopt(self, invocation: Invocation, directory: Path) -> StartedAttempt | None:
        """Take over an attempt; one that was copied is copied again."""
        return self._placement.adopt(invocation, directory) if self._answer(invocation) is None else None

    def _ranks(self, found: _Recorded) -> RecordedRanks:
        return RecordedRanks(Replay(self._run, self._redactor, step=found.step))

    def _answer(self, invocation: Invocation) -> _Recorded | None:
        """Return the attempt that was the same command with the same changes, and left what this one is for."""
        if invocation.attempt != 1:
            return None
        argv = self._redactor.argv(invocation.argv)
        changed = _without_arms(self._redactor.env(invocation.env))
        for one in self._recorded:
            # A stack more than was asked for; where the stack is what is asked for, it must have been written.
            more = {name: value for name, value in one.changed.items() if name in changed or name != _FAULT_HANDLER}
            if (one.argv, more) == (argv, changed) and all(
                not rule.required or any(one.folder.glob(f"*/{rule.glob}")) for rule in invocation.artifacts
            ):
                return one
        return None


class AnsweredAttempt:
    """A StartedAttempt that had ended in another run."""

    def __init__(self, ranks: StartedRanks, note: str) -> None:
        self._ranks = ranks
        self._note = note

    def wait(self, timeout_s: float | None = None) -> tuple[Observation, ...] | None:
        """Return what was seen then, and say where it is from."""
        ranks = self._ranks.wait(timeout_s)
        return ranks and tuple(replace(seen, notes=(self._note, *seen.notes)) for seen in ranks)

    def cancel(self, *, firmly: bool = False) -> None:
        """Stop copying."""
        self._ranks.cancel(firmly=firmly)


def _attempts(run: Path) -> Iterator[_Recorded]:
    """Yield the first attempt of each step that ran a command and whose end was seen."""
    for folder in sorted(run.glob("steps/*/1")):
        for file in sorted(folder.glob("*/argv.json")):
            try:
                if read_document(file.parent / "ended.json")["by"] == EndedBy.CANCEL:
                    break  # it says nothing about the bug
                argv = tuple(read_document(file)["argv"])
                changed = _without_arms(read_document(file.parent / "env.json")["delta"])
            except (OSError, ValueError, KeyError, TypeError, AttributeError):
                break  # a workload can write there
            yield _Recorded(step=folder.parent.name, folder=folder, argv=argv, changed=changed)
            break


def _without_arms(env: Mapping[str, str | None]) -> Mapping[str, str | None]:
    return {name: value for name, value in env.items() if not _ARMS.match(name)}
