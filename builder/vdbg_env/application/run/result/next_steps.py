"""What to try next: what the findings say, and where none says anything, what the verdict asks for."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from typing import assert_never

from vdbg_env.application.run.result.model import NextStep, Report
from vdbg_env.evidence.finding import Finding, Level
from vdbg_env.runbook.state import Verdict
from vdbg_env.runbook.workload.recognise import recognise

_READ_CORE = "vdbg-env core "
_READ_RECORD = ("tail ", "less ")
_COMMAND = " -- COMMAND"  # how a runbook writes the command that the run was given


def next_steps(findings: Sequence[Finding], *, walked: str = "") -> tuple[NextStep, ...]:
    """Return what the findings say to try next, each text and each command once: errors first, then surest first.

    The runbook that was `walked` is not among it.
    """
    levels = list(Level)
    texts: dict[str, Finding] = {}
    for finding in sorted(findings, key=lambda f: levels.index(f.level)):
        if finding.next_step:
            texts.setdefault(finding.next_step, finding)
    steps = [next_step(text, finding) for text, finding in texts.items()]
    named = any((step.command or "").startswith(_READ_CORE) and step.command != f"{_READ_CORE}FILE" for step in steps)
    first = {step.command: step for step in reversed(steps)}
    return tuple(
        step
        for step in steps
        if not (step.command or "").startswith(f"vdbg-env runbook {walked} --from ")
        and (
            step.command is None
            or (first[step.command] is step and not (named and step.command == f"{_READ_CORE}FILE"))
        )
    )


def next_step(text: str, finding: Finding) -> NextStep:
    """Split `what it is for: vdbg-env ...` into words and command; a command alone is for what the finding says."""
    if text.startswith("vdbg-env "):
        return NextStep(text=finding.message, command=text)
    words, colon, command = text.rpartition(": ")
    if colon and command.startswith(("vdbg-env ", "VLLM_", "CUDA_", "unset ", *_READ_RECORD)):
        return NextStep(text=words, command=command)
    return NextStep(text=text)


def on_its_command(finding: Finding, run: str, flags: str = "") -> Finding:
    """Return the finding with the command of `run` in place of the word COMMAND, so it can be typed as it is.

    `flags` are what a runbook needs on that command.
    """
    begun = (finding.next_step or "").removesuffix(_COMMAND)
    if begun == (finding.next_step or ""):
        return finding
    return replace(finding, next_step=f"{begun}{flags} --from {shlex.quote(run)}")


def flags_after_guard(workload: Sequence[str]) -> str:
    """Return the flags of a runbook on a command that was guarded.

    A server in production is started again at its port, and its requests were not recorded.
    """
    return " -i request=synthetic -i port=auto" if recognise(tuple(workload)).serves else ""


def advice(
    findings: Sequence[Finding], verdict: Verdict, *, walked: str, run: str, ended: bool
) -> tuple[NextStep, ...]:
    """Return what to try next of a run; of one that has `ended`, never nothing.

    A failure that did not show is looked for with what it failed with, before what warnings of the machine ask for.
    """
    said = next_steps(findings, walked=walked)
    unseen = verdict is Verdict.NOT_REPRODUCED and not any(finding.level is Level.ERROR for finding in findings)
    if ended and (unseen or not said):
        return (by_verdict(verdict, run=run), *said)
    return said


def by_verdict(verdict: Verdict, *, run: str) -> NextStep:
    """Return what to try where no finding says: no run ends without a way on."""
    match verdict:
        case Verdict.REPRODUCED | Verdict.HANG | Verdict.FAILED:
            return NextStep(text="give report.md to the owner of the code: it holds the failure and all that was tried")
        case Verdict.NOT_REPRODUCED:
            return NextStep(
                text="run it as it was when it failed: the same requests (-i request=FILE), load, node and versions"
            )
        case Verdict.PASSED | Verdict.WARNED:
            return NextStep(text="nothing is wrong here; run the same on the machine where it failed")
        case Verdict.INCONCLUSIVE | Verdict.OUT_OF_TIME:
            return NextStep(text="see what each step printed", command=shlex.join(["vdbg-env", "runs", "show", run]))
    assert_never(verdict)


def typed_outside(report: Report, folder: str) -> Report:
    """Return the report with the files its commands name given by `folder`, the run's own: next to the record, a report
    names them from there, and on a terminal a command is typed in any folder. So are those of the findings.
    """
    inside = {artifact.path for step in report.steps for artifact in step.artifacts}

    def word(text: str, *, of_record: bool) -> str:
        if text in inside:
            return shlex.quote(f"{folder}/{text}")
        return f"{shlex.quote(folder)}/{text}" if of_record and text.startswith("steps/") else text  # may be a pattern

    def typed(command: str) -> str:
        of_record = command.startswith(_READ_RECORD)
        return " ".join(word(text, of_record=of_record) for text in command.split(" "))

    def found(finding: Finding) -> Finding:
        step = next_step(finding.next_step, finding) if finding.next_step else None
        if step is None or step.command is None or finding.next_step is None:
            return finding
        words = finding.next_step.removesuffix(step.command)
        return replace(finding, next_step=words + typed(step.command))

    steps = (replace(step, command=typed(step.command) if step.command else None) for step in report.next_steps)
    return replace(report, next_steps=tuple(steps), findings=tuple(map(found, report.findings)))
