"""Turn a runbook file into a runbook: shared steps taken in, limits inherited, a `next` for each outcome."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, assert_never

from vdbg_env.common.errors import Complaint
from vdbg_env.common.yaml_source import Path, YamlSource, validate
from vdbg_env.runbook.catalogue import Catalogue
from vdbg_env.runbook.model import Manual, Outcome, Run, Runbook, Step, Uses
from vdbg_env.runbook.model.runbook import RunbookFile
from vdbg_env.runbook.model.step import SharedStep
from vdbg_env.runbook.parsing.library import Library
from vdbg_env.runbook.parsing.locations import Places

_INHERITED = ("timeout_s", "kill", "watch", "output", "placement")  # of a step's command, unless the step has its own


@dataclass(frozen=True, kw_only=True)
class Resolved:
    """A runbook with the places of its parts, and what is wrong with it so far."""

    runbook: Runbook
    places: Places
    complaints: tuple[Complaint, ...]


def resolve(source: YamlSource, library: Library, catalogue: Catalogue) -> Resolved:
    """Return the runbook of a file; raises BadDocument when its shape is wrong."""
    return _Resolver(validate(RunbookFile, source), source, library, catalogue).resolved()


class _Resolver:
    """Completes each step, and collects what the shape of the file could not show."""

    def __init__(self, file: RunbookFile, source: YamlSource, library: Library, catalogue: Catalogue) -> None:
        self.file = file
        self.source = source
        self.library = library
        self.catalogue = catalogue
        self.borrowed: dict[Path, tuple[YamlSource, Path]] = {}
        self.complaints: list[Complaint] = []

    @property
    def places(self) -> Places:
        return Places(source=self.source, borrowed=self.borrowed)

    def resolved(self) -> Resolved:
        steps = tuple(self._steps())
        given: dict[str, Any] = {**dict(self.file.metadata), **dict(self.file.spec), "steps": steps}
        given |= {"file": self.source.name, "digest": self._digest(), "catalogue": self.catalogue}
        runbook = Runbook.model_construct(**given)
        return Resolved(runbook=runbook, places=self.places, complaints=tuple(self.complaints))

    def _digest(self) -> str:
        taken = sorted({x.source for x in self.file.spec.steps if isinstance(x, SharedStep)})
        texts = [self.source.text, *(self.library.text(name) for name in taken if name in self.library.names)]
        return hashlib.sha256("\0".join("\n".join(lines) for lines in texts).encode()).hexdigest()

    def _steps(self) -> list[Step]:
        steps: list[Step] = []
        for index, given in enumerate(self.file.spec.steps):
            path: Path = ("spec", "steps", index)
            if isinstance(given, SharedStep):
                taken = self.library.take(given, path, self.places)
                if isinstance(taken, Complaint):
                    self.complaints.append(taken)
                    continue
                full, borrowed = taken
                self.borrowed |= borrowed
            else:
                full = given
            steps.append(self._step(full, path))
        return steps

    def _step(self, step: Step, path: Path) -> Step:
        completed: dict[str, Any] = {"title": step.title or step.id}
        match step:
            case Run():
                completed |= self._limits(step) | {"outcomes": self._outcomes(step, path)}
            case Uses():
                completed["outcomes"] = self._outcomes(step, path)
            case Manual():
                pass
            case _:
                assert_never(step)
        return step.model_copy(update=completed)

    def _limits(self, step: Run) -> dict[str, Any]:
        command = self.file.spec.commands.get(step.command)
        if command is None:
            return {}
        return {name: getattr(command, name) for name in _INHERITED if name not in step.model_fields_set}

    def _outcomes(self, step: Run | Uses, path: Path) -> tuple[Outcome, ...]:
        if not step.outcomes:
            what = f"step {step.id!r} has no outcomes: say what follows, at least '- unresolved: {{next: end}}'"
            self.complaints.append(self.places.complaint(path, what))
        return tuple(
            self._outcome(outcome, step, (*path, "outcomes", index, outcome.status.value))
            for index, outcome in enumerate(step.outcomes)
        )

    def _outcome(self, outcome: Outcome, step: Run | Uses, path: Path) -> Outcome:
        if outcome.rule and "level" not in outcome.model_fields_set:
            what = f"rule {outcome.rule} needs a level: error, warning or note"
            self.complaints.append(self.places.complaint((*path, "rule"), what, key=True))
        if "next" in outcome.model_fields_set:
            return outcome
        target = step.next
        if isinstance(target, Mapping):
            target = target.get(outcome.status, target.get("otherwise"))
        if target is None:
            what = "this outcome leads nowhere: give it, or its step, a 'next' (a step, 'end', or {runbook: NAME})"
            self.complaints.append(self.places.complaint(path, what, key=True))
            return outcome
        return outcome.model_copy(update={"next": target})
