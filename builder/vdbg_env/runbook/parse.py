"""Turns the YAML of a runbook into its frozen value; every complaint at once, with file, line, column and caret."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypedDict, assert_never

from vdbg_env.common.errors import BadDocument, Complaint
from vdbg_env.common.yaml_source import Path, YamlSource, validate
from vdbg_env.evidence.finding import HowKnown, Level
from vdbg_env.runbook import model
from vdbg_env.runbook.invocation import ArtifactRule, KillPolicy, Matcher, OutputPolicy, ServerDriver, Watch
from vdbg_env.runbook.lint import checks as lint
from vdbg_env.runbook.parsing import schema, schema_step
from vdbg_env.runbook.parsing.library import FullStep, Library
from vdbg_env.runbook.parsing.locations import Places

_BUILTIN = re.compile(r"builtin/([a-z][a-z0-9-]*)@v([0-9]{1,3})")
_ADVICE = "vdbg-env runbooks schema shows every key; docs/07-runbook-format.md explains them"


@dataclass(frozen=True, kw_only=True)
class Parsed:
    """A runbook's value with the places of its parts, and what is wrong with it so far."""

    runbook: model.Runbook
    places: Places
    complaints: tuple[Complaint, ...]


def load(source: YamlSource, library: Library, *, runbooks: Sequence[str] | None = None) -> model.Runbook:
    """Parse and lint one runbook; raises BadDocument with every complaint.

    `runbooks` are the names a step may branch to; None accepts any name.
    """
    parsed = parse(source, library)
    complaints = sorted(
        {*parsed.complaints, *lint.complaints(parsed.runbook, parsed.places, runbooks=runbooks)},
        key=lambda x: (x.file, x.line, x.column, x.what),
    )
    if complaints:
        raise BadDocument(tuple(complaints), next_step=_ADVICE)
    return parsed.runbook


def parse(source: YamlSource, library: Library) -> Parsed:
    """Parse one runbook; raises BadDocument when its shape is wrong."""
    file = validate(schema.RunbookFile, source)
    return _Parser(file, source, library).parsed()


class _Common(TypedDict):
    """What the constructors of Run and Uses share."""

    id: str
    title: str
    explanation: str
    condition: str | None
    skipped: model.Skipped | None
    tools: tuple[str, ...]
    outcomes: tuple[model.Outcome, ...]


class _Parser:
    """Builds the frozen value from the checked shape, collecting what the shape could not show."""

    def __init__(self, file: schema.RunbookFile, source: YamlSource, library: Library) -> None:
        self.spec = file.spec
        self.metadata = file.metadata
        self.source = source
        self.library = library
        self.borrowed: dict[Path, tuple[YamlSource, Path]] = {}
        self.complaints: list[Complaint] = []

    def parsed(self) -> Parsed:
        steps = self._steps()
        runbook = model.Runbook(
            name=self.metadata.name,
            title=self.metadata.title,
            description=self.metadata.description or "",
            labels=tuple(self.metadata.labels),
            sources=tuple(self.metadata.sources),
            file=self.source.name,
            digest=self._digest(),
            requires=_requires(self.spec.requires),
            inputs={name: _input(name, x) for name, x in self.spec.inputs.items()},
            matchers={name: _matcher(name, x) for name, x in self.spec.matchers.items()},
            commands={name: _command(name, x) for name, x in self.spec.commands.items()},
            steps=steps,
        )
        return Parsed(runbook=runbook, places=self._places(), complaints=tuple(self.complaints))

    def _places(self) -> Places:
        return Places(source=self.source, borrowed=self.borrowed)

    def _digest(self) -> str:
        taken = sorted({x.from_ for x in self.spec.steps if isinstance(x, schema_step.SharedStep)})
        texts = [self.source.text, *(self.library.text(name) for name in taken if name in self.library.names)]
        return hashlib.sha256("\0".join("\n".join(lines) for lines in texts).encode()).hexdigest()

    def _steps(self) -> tuple[model.Step, ...]:
        steps: list[model.Step] = []
        for index, given in enumerate(self.spec.steps):
            path: Path = ("spec", "steps", index)
            if isinstance(given, schema_step.SharedStep):
                taken = self.library.take(given, path, self._places())
                if isinstance(taken, Complaint):
                    self.complaints.append(taken)
                    continue
                full, borrowed = taken
                self.borrowed |= borrowed
            else:
                full = given
            steps.append(self._step(full, path))
        return tuple(steps)

    def _step(self, step: FullStep, path: Path) -> model.Step:
        match step:
            case schema_step.RunStep():
                return self._run(step, path)
            case schema_step.UsesStep():
                return model.Uses(
                    **self._common(step, path),
                    builtin=self._builtin(step.uses, step.with_, path),
                    timeout_s=step.timeout,
                    results=step.results,
                )
            case schema_step.ManualStep(manual=question):
                return model.Manual(
                    id=step.id,
                    title=step.name or step.id,
                    explanation=step.explain or "",
                    condition=step.if_,
                    skipped=_skipped(step.skipped),
                    prompt=question.prompt,
                    choices={name: _next(target) for name, target in question.choices.items()},
                    default=question.default,
                    timeout_s=question.timeout,
                )
            case _:
                assert_never(step)

    def _run(self, step: schema_step.RunStep, path: Path) -> model.Run:
        command = self.spec.commands.get(step.run)
        inherited = command or schema.Command(argv="-")
        argv = step.argv or schema_step.ArgvOverlay()
        repeat = step.repeat or schema_step.Repeat()
        readers = [
            self._builtin(reader.uses, reader.with_, (*path, "readers", i)) for i, reader in enumerate(step.readers)
        ]
        return model.Run(
            **self._common(step, path),
            command=step.run,
            env=dict(step.env),
            argv=model.ArgvOverlay(append=tuple(argv.append), remove=tuple(argv.remove), wrap=tuple(argv.wrap)),
            engine_args=dict(step.engine_args),
            repeat=model.Repeat(count=repeat.count, until=repeat.until),
            timeout_s=step.timeout or inherited.timeout,
            kill=_kill(step.kill or inherited.kill),
            watch=_watch(step.watch or inherited.watch),
            output=_output(step.output or inherited.output),
            matchers=tuple(_matcher(name, x) for name, x in step.matchers.items()),
            artifacts=tuple(
                ArtifactRule(name=name, glob=x.path, required=x.required, max_size=x.max_size)
                for name, x in step.artifacts.items()
            ),
            readers=tuple(readers),
            results=dict(step.results),
            verify_env=step.verify_env,
        )

    def _common(self, step: schema_step.RunStep | schema_step.UsesStep, path: Path) -> _Common:
        return {
            "id": step.id,
            "title": step.name or step.id,
            "explanation": step.explain or "",
            "condition": step.if_,
            "skipped": _skipped(step.skipped),
            "tools": tuple(step.requires.tools) if step.requires else (),
            "outcomes": self._outcomes(step, path),
        }

    def _outcomes(self, step: schema_step.RunStep | schema_step.UsesStep, path: Path) -> tuple[model.Outcome, ...]:
        if not step.outcomes:
            what = f"step {step.id!r} has no outcomes: say what follows, at least '- unresolved: {{next: end}}'"
            self.complaints.append(self._places().complaint(path, what))
        outcomes = []
        for index, entry in enumerate(step.outcomes or ()):
            (field,) = entry.model_fields_set
            status = model.Status(field.rstrip("_"))
            where = (*path, "outcomes", index, status.value)
            outcomes.append(self._outcome(status, getattr(entry, field), step.next, where))
        return tuple(outcomes)

    def _outcome(
        self, status: model.Status, given: schema_step.Outcome, step_next: schema_step.StepNext | None, path: Path
    ) -> model.Outcome:
        target = given.next or _by_status(step_next, status)
        if target is None:
            what = "this outcome leads nowhere: give it, or its step, a 'next' (a step, 'end', or {runbook: NAME})"
            self.complaints.append(self._places().complaint(path, what, key=True))
        if given.rule and not given.level:
            what = f"rule {given.rule} needs a level: error, warning or note"
            self.complaints.append(self._places().complaint((*path, "rule"), what, key=True))
        return model.Outcome(
            status=status,
            when=given.when,
            next=_next(target) if target is not None else model.End(),
            message=given.message,
            rule=given.rule,
            level=Level(given.level or "note"),
            location=given.location,
            how_known=HowKnown(given.how_known or "step-change"),
            confidence=0.6 if given.confidence is None else given.confidence,
            next_step=given.next_step,
        )

    def _builtin(self, text: str, parameters: Mapping[str, model.Data], path: Path) -> model.Builtin:
        found = _BUILTIN.fullmatch(text)
        if not found:
            what = f"{text!r} is not a built-in with its version, such as 'builtin/collect-env@v1'"
            self.complaints.append(self._places().complaint((*path, "uses"), what))
        name, version = (found[1], int(found[2])) if found else ("", 0)
        return model.Builtin(name=name, version=version, parameters=dict(parameters))


def _next(target: str | schema_step.Branch) -> model.Next:
    match target:
        case schema_step.Branch(runbook=name):
            return model.ToRunbook(runbook=name)
        case "end":
            return model.End()
        case step:
            return model.ToStep(step=step)


def _by_status(step_next: schema_step.StepNext | None, status: model.Status) -> str | schema_step.Branch | None:
    if not isinstance(step_next, schema_step.NextByStatus):
        return step_next
    field = "pass_" if status is model.Status.PASS else status.value
    named: str | schema_step.Branch | None = getattr(step_next, field)
    return named or step_next.otherwise


def _skipped(given: schema_step.Skipped | None) -> model.Skipped | None:
    return model.Skipped(next=_next(given.next)) if given else None


def _requires(given: schema.Requires) -> model.Requires:
    return model.Requires(tools=tuple(given.tools), free_disk=given.free_disk, gpu=given.gpu, lineinfo=given.lineinfo)


def _input(name: str, given: schema.Input) -> model.Input:
    return model.Input(
        name=name,
        type=given.type,
        description=given.description or "",
        required=given.required,
        default=given.default,
        from_env=given.from_env,
        sensitive=given.sensitive,
    )


def _matcher(name: str, given: schema_step.Matcher) -> Matcher:
    return Matcher(name=name, pattern=given.regex, source=given.source, take=given.take, stop=given.stop)


def _command(name: str, given: schema.Command) -> model.Command:
    driver = given.driver
    return model.Command(
        name=name,
        argv=given.argv if isinstance(given.argv, str) else tuple(given.argv),
        env=dict(given.env),
        driver=ServerDriver(ready_url=driver.ready.http, ready_timeout_s=driver.ready.timeout, replay=driver.replay)
        if driver
        else None,
    )


def _kill(given: schema_step.Kill | None) -> KillPolicy:
    return KillPolicy(signal=given.signal, grace_s=given.grace) if given else KillPolicy()


def _watch(given: schema_step.Watch | None) -> Watch:
    if given is None:
        return Watch()
    return Watch(
        output_idle_s=given.output_idle,
        gpu_idle_s=given.gpu_idle,
        gpu_pinned_s=given.gpu_pinned,
        on_hang=tuple(given.on_hang),
        dump_wait_s=given.dump_wait,
    )


def _output(given: schema_step.Output | None) -> OutputPolicy:
    return OutputPolicy(limit=given.limit, keep=given.keep) if given else OutputPolicy()
