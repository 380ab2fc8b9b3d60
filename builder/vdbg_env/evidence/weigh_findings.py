"""Weigh all findings of a run against each other, by small rules in a fixed order.

Each source has its own reader, and each reader says how sure it is by itself. These rules weigh one source against
another: two that name the same line make it surer, a broken GPU explains a software fault, a stack taken after the
fact is only a hint. The figures are judgements, kept in one place for review.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from gpucore.mangling import demangle, short_name
from vdbg_env.evidence.finding import Finding, HowKnown, Level
from vdbg_env.evidence.system.not_started import NOT_STARTED
from vdbg_env.evidence.system.xid import xid_meaning
from vdbg_env.evidence.tools.sanitizer_findings import SANITIZER_FAILED

MOST_SURE = 0.99  # nothing read from a crashed machine is certain
_BROKEN_HARDWARE = 0.5  # how much of its confidence a software finding keeps on a GPU that reports hardware faults
_HINT_BESIDE_PROOF = 0.4  # the most a log's stack is worth once a core or the sanitizer has named the place

_PROOF = {HowKnown.GPU_CORE, HowKnown.SANITIZER}
_WORDS = {
    HowKnown.GPU_CORE: "the GPU core",
    HowKnown.SANITIZER: "compute-sanitizer",
    HowKnown.DRIVER: "the driver",
    HowKnown.LOG: "the log",
    HowKnown.STEP_CHANGE: "a changed step",
    HowKnown.KERNEL_LOG: "the kernel log",
    HowKnown.HOST_CHECK: "a check of the host",
}

Rule = Callable[[Sequence[Finding]], Sequence[Finding]]


def judge(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return the findings of a run by falling confidence, the more severe first among equals, each fault once.

    Warnings of the machine alone are last.
    """
    weighed: Sequence[Finding] = tuple(findings)
    for rule in RULES:
        weighed = rule(weighed)
    levels = list(Level)
    return tuple(sorted(weighed, key=lambda f: (is_backdrop(f), -f.confidence, levels.index(f.level), _strength(f))))


def is_backdrop(finding: Finding) -> bool:
    """Return whether a finding warns of the machine or of a tool only: sure as it is, it explains no failure.

    A command that could not be started is no such warning: nothing else of the run counts before it is.
    """
    warns = finding.how_known is HowKnown.HOST_CHECK and finding.level is not Level.ERROR
    return finding.rule == SANITIZER_FAILED or (warns and finding.rule != NOT_STARTED)


def one_of_each(findings: Sequence[Finding]) -> Sequence[Finding]:
    """Keep the surest of findings that say the same word for word, as several ranks do."""
    kept: dict[tuple[object, ...], Finding] = {}
    for finding in findings:
        key = (finding.rule, finding.location, finding.kernel, finding.message)
        if key not in kept or kept[key].confidence < finding.confidence:
            kept[key] = finding
    return tuple(kept.values())


def one_fault_once(findings: Sequence[Finding]) -> Sequence[Finding]:
    """Join findings of one kind that name one place, keeping the most detailed one."""
    kept: list[Finding] = []
    for finding in sorted(findings, key=lambda f: (-len(f.chain), f.kernel is None, -f.confidence)):
        same = next((k for k in kept if k.how_known is finding.how_known and _same_place(k, finding)), None)
        if same is None:
            kept.append(finding)
        elif finding.confidence > same.confidence:
            kept[kept.index(same)] = replace(same, confidence=finding.confidence)
    return tuple(kept)


def hardware_first(findings: Sequence[Finding]) -> Sequence[Finding]:
    """Lower the confidence in software faults on a GPU that reports a hardware fault."""
    broken = [f for f in findings if _is_hardware_fault(f)]
    if not broken:
        return findings
    return tuple(
        f
        if f in broken or f.how_known is HowKnown.HOST_CHECK
        else replace(f, confidence=f.confidence * _BROKEN_HARDWARE)
        for f in findings
    )


def _is_hardware_fault(finding: Finding) -> bool:
    """Return whether the kernel log reports a fault of the GPU itself; an Xid 13 or 31 is what software did."""
    code = finding.rule.removeprefix("xid-")
    if finding.how_known is not HowKnown.KERNEL_LOG or finding.level is not Level.ERROR or not code.isdecimal():
        return False
    return xid_meaning(int(code)).severity == "hardware"


def witnesses_agree(findings: Sequence[Finding]) -> Sequence[Finding]:
    """Make a fault surer that independent sources put at the same place, and say who agrees."""
    result = []
    for finding in findings:
        others = {f.how_known: f for f in findings if f.how_known is not finding.how_known and _same_place(finding, f)}
        if finding.how_known in _PROOF and others:
            doubt = 1 - finding.confidence
            for other in others.values():
                doubt *= 1 - other.confidence / 2
            named = ", ".join(_WORDS[source] for source in HowKnown if source in others)
            message = f"{finding.message} ({named} names the same place)"
            finding = replace(finding, confidence=min(1 - doubt, MOST_SURE), message=message)
        result.append(finding)
    return tuple(result)


def hints_step_back(findings: Sequence[Finding]) -> Sequence[Finding]:
    """Once the faulting instruction is known, a stack of the host is only where the error was noticed."""
    if not any(f.how_known in _PROOF and f.level is Level.ERROR and (f.location or f.kernel) for f in findings):
        return findings
    return tuple(
        replace(f, confidence=min(f.confidence, _HINT_BESIDE_PROOF))
        if f.how_known in {HowKnown.LOG, HowKnown.STEP_CHANGE} and f.location
        else f
        for f in findings
    )


RULES: tuple[Rule, ...] = (one_of_each, one_fault_once, hardware_first, witnesses_agree, hints_step_back)


def _same_place(one: Finding, other: Finding) -> bool:
    """Return whether two findings name one place: the same line, else the same kernel if one has no line."""
    if one.level is not Level.ERROR or other.level is not Level.ERROR:
        return False
    if one.location and other.location:
        return (_file(one), one.location.line) == (_file(other), other.location.line)
    return one.kernel is not None and other.kernel is not None and _kernel(one.kernel) == _kernel(other.kernel)


def _file(finding: Finding) -> str:
    return finding.location.file.rsplit("/", 1)[-1] if finding.location else ""


def _kernel(name: str) -> str:
    return short_name(demangle(name))


def _strength(finding: Finding) -> int:
    return list(HowKnown).index(finding.how_known)
