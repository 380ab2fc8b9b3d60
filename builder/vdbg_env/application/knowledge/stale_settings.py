"""What a command line, an environment or a runbook sets that this vLLM does not read, with what replaced it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from vdbg_env.application.knowledge.load import shipped_knowledge
from vdbg_env.evidence.finding import Finding, HowKnown, Level
from vdbg_env.evidence.knowledge.names import NameJudgement
from vdbg_env.runbook.model import Run, Runbook, Step
from vdbg_env.runbook.workload.engine_args import as_flags


@dataclass(frozen=True, kw_only=True)
class Settings:
    """A user's command line and the environment it inherits."""

    argv: tuple[str, ...] = ()
    environment: Mapping[str, str | None] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class StaleSetting:
    """One name whose setting has no effect, and `where`: in the command, the environment, or a step of the runbook."""

    where: str
    judged: NameJudgement

    @property
    def name(self) -> str:
        """The flag or variable; for a piece of advice that is not followed, its id."""
        return self.judged.name

    @property
    def text(self) -> str:
        """One sentence with what replaced it and the source of that."""
        source = f" ({self.judged.source})" if self.judged.source else ""
        what = f"{self.judged.what}: " if self.judged.status == "advice" else ""
        return f"{self.where}: {what}{self.judged.message}{source}"

    @property
    def finding(self) -> Finding:
        """A warning: a setting without effect makes a step look tried."""
        instead = self.judged.replaced_by
        return Finding(
            rule="stale-setting",
            level=Level.WARNING,
            message=self.text,
            how_known=HowKnown.HOST_CHECK,
            confidence=0.9,
            next_step=f"use {instead}" if instead and instead != "nothing" else None,
        )


def stale_settings(given: Settings, of_steps: Mapping[str, Settings], vllm: str | None) -> tuple[StaleSetting, ...]:
    """Return what is set and deserves a word, the user's own first; `vllm` is a release, the newest known without.

    Of the environment only names of the tables and of vLLM's count. A name of a step that this release does not have
    yet is none: runbooks set what newer releases read, and it does no harm.
    """
    named = replace(given, environment={n: v for n, v in given.environment.items() if _is_ours(n)})
    return (*_of_user(named, vllm), *_of_steps(of_steps, vllm))


def settings_of(steps: Iterable[Step]) -> dict[str, Settings]:
    """Return what each run step of a runbook changes, by its id, its engine arguments as flags."""
    return {
        step.id: Settings(
            argv=("vllm", *as_flags((), step.engine_args), *(w for w in step.argv.append if w.startswith("-"))),
            environment=step.env,
        )
        for step in steps
        if isinstance(step, Run)
    }


def told_before_start(runbook: Runbook, given: Settings, vllm: Callable[[], str | None]) -> tuple[str, ...]:
    """Return a line for each stale setting; `vllm` is asked only where the newest release known gives reason to."""
    of_steps = settings_of(runbook.steps)
    if not stale_settings(given, of_steps, None):
        return ()
    return tuple(setting.text for setting in stale_settings(given, of_steps, vllm()))


def _of_user(given: Settings, vllm: str | None) -> Iterator[StaleSetting]:
    knowledge = shipped_knowledge()
    for where, argv, environment in (("the command", given.argv, {}), ("the environment", (), given.environment)):
        for judged in knowledge.judge_command(argv, environment, vllm):
            yield StaleSetting(where=where, judged=judged)


def _of_steps(of_steps: Mapping[str, Settings], vllm: str | None) -> Iterator[StaleSetting]:
    seen: set[str] = set()
    for step, settings in of_steps.items():
        for judged in shipped_knowledge().judge_command(settings.argv, settings.environment, vllm):
            if judged.level == "error" and judged.status != "not-yet" and judged.name not in seen:
                seen.add(judged.name)
                yield StaleSetting(where=f"step {step}", judged=judged)


def _is_ours(name: str) -> bool:
    knowledge = shipped_knowledge()
    return name.startswith("VLLM_") or name in knowledge.rows or name in knowledge.surface.names
