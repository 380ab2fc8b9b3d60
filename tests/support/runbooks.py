"""Small runbooks and step results for the tests of the engine and of who runs its decisions."""

from collections.abc import Mapping
from typing import TypeVar

from vdbg_env.evidence.finding import Artifact, Ended, EndedBy, Match, Observation
from vdbg_env.runbook.model import Part
from vdbg_env.runbook.state import ResultValue, StepResult

Artifacts = Mapping[str, int] | None
P = TypeVar("P", bound=Part)
TINY = """\
apiVersion: vdbg-env/v1
kind: Runbook
metadata: {name: tiny, title: A tiny runbook}
spec:
  inputs: {argv: {type: array, required: true, description: The workload.}}
  matchers: {boom: {regex: 'boom'}}
  commands: {workload: {argv: "${{ inputs.argv }}", timeout: 20s}}
  steps:
    - id: baseline
      name: Does it fail?
      run: workload
      env: {MODE: loud}
      outcomes:
        - reproduced: {when: has(matched.boom), rule: T001, level: error, message: it booms, next: end}
        - not_reproduced: {when: ended.clean, next: end}
        - unresolved: {next: end}
"""


def changed(part: P, **fields: object) -> P:
    """A copy of a part of a runbook with some of its fields changed."""
    return part.model_copy(update=fields)


def crashed(step: str, *matchers: str, attempt: int = 1, rank: int = 0, artifacts: Artifacts = None) -> Observation:
    """An attempt that died of SIGABRT, with one match of each matcher named."""
    return observation(
        step, *matchers, ended=Ended(by=EndedBy.SIGNAL, signal=6), attempt=attempt, rank=rank, artifacts=artifacts
    )


def ran(step: str, *matchers: str, attempt: int = 1, rank: int = 0, artifacts: Artifacts = None) -> Observation:
    """An attempt that came to a good end."""
    return observation(
        step, *matchers, ended=Ended(by=EndedBy.EXIT, code=0), attempt=attempt, rank=rank, artifacts=artifacts
    )


def hung(step: str, *matchers: str, attempt: int = 1) -> Observation:
    """An attempt that the watch ended."""
    return observation(step, *matchers, ended=Ended(by=EndedBy.WATCH, signal=9), attempt=attempt)


def observation(
    step: str,
    *matchers: str,
    ended: Ended,
    attempt: int = 1,
    rank: int = 0,
    duration_s: float = 1.0,
    artifacts: Artifacts = None,
) -> Observation:
    """An observation with one match per matcher named, and `artifacts` as name -> number of files."""
    return Observation(
        step=step,
        attempt=attempt,
        rank=rank,
        ended=ended,
        duration_s=duration_s,
        matched={name: (match(name),) for name in matchers},
        artifacts={
            name: tuple(Artifact(name=f"{name}.{i}", path=f"{step}/{name}.{i}", size=100) for i in range(count))
            for name, count in (artifacts or {}).items()
        },
    )


def match(name: str) -> Match:
    """One match on line 7."""
    return Match(matcher=name, stream="stderr", line=7, offset=99, text=f"text of {name}", groups={"file": "a.py"})


def result(step: str, *observations: Observation, **results: ResultValue) -> StepResult:
    """The result of a step: its observations, and typed results by keyword."""
    return StepResult(step=step, observations=observations, results=results)
