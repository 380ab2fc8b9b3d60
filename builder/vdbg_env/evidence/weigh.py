"""Name crashes of one cause alike, and weigh all findings of a run against each other."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from gpucore.dwarf import Chain, SourceFrame
from gpucore.mangling import demangle, short_name
from vdbg_env.evidence.finding import Finding, HowKnown, Level
from vdbg_env.evidence.log_line import parse_cuda_error
from vdbg_env.evidence.sanitizer import SANITIZER_FAILED
from vdbg_env.evidence.system import NOT_STARTED, xid_meaning

PREFIX: Final = "v2-"
"""The version of what fingerprints are made of; another one is made anew from the record before it is compared."""

_FRAMES = 3  # of an exception: the innermost ones
_CHAIN = 16  # frames of a kernel's inline chain
_DIGITS = 16
# Of a traceback: what a program is built on, and the standard library.
_LIBRARY = re.compile(
    r"/(?:site|dist)-packages/(?:torch|triton|numpy|transformers|uvloop|uvicorn|fastapi|starlette|anyio|zmq|ray)/"
    r"|/lib/python3[.\d]*/(?!(?:site|dist)-packages/)|^<"
)
_PACKAGES = re.compile(r".*/(?:site|dist)-packages/")
_EXCEPTION = re.compile(r"(?P<type>[A-Za-z_][\w.]*)(?::|$)")
_OF_THE_GPU = {HowKnown.GPU_CORE, HowKnown.SANITIZER, HowKnown.DRIVER}


@dataclass(frozen=True, kw_only=True)
class Fingerprint:
    """The cause of a crash: `id` names it, `base` names it without its place inside the kernel.

    A core without line info has no chain. It then has the `base` of a crash whose chain a line pack gave, and another
    `id`: `is_same_cause` takes both for one. `kind` is what it is made of: gpu, death, exception, signal, memory, hang
    or failure. Both begin with the version. `frames` are innermost first; of device code they are the
    inline chain.
    """

    id: str
    base: str
    kind: str
    exception: str
    kernel: str | None = None
    frames: tuple[str, ...] = ()

    def is_same_cause(self, other: Fingerprint) -> bool:
        """Return whether two crashes have one cause, as far as each is known."""
        return is_same_cause((self.id, self.base), (other.id, other.base))

    def __str__(self) -> str:
        where = f" in {short_name(self.kernel)}" if self.kernel else ""
        return f"{self.exception}{where}" + (f" at {self.frames[0]}" if self.frames else "")


def is_same_cause(one: tuple[str, str], other: tuple[str, str]) -> bool:
    """Compare two pairs of `id` and `base`; one that has no place in its kernel fits every place in it."""
    if one[0] == other[0]:
        return True
    return one[1] == other[1] and (one[0] == one[1] or other[0] == other[1])


@dataclass(frozen=True, kw_only=True)
class Crash:
    """What is known of a crash: its findings, the exception (`error`) with its stack, outermost frame first."""

    findings: Sequence[Finding] = ()
    error: str | None = None
    stack: Sequence[SourceFrame] = ()
    failure: str | None = None  # the class that triage named
    signal: str | None = None
    hang: bool = False
    stuck: str | None = None  # how the process that the others wait for hangs: stopped, runs or waits
    died: str | None = None  # how the process died first: a signal's name, or `exit status N`
    process: str | None = None  # what the process is that died or is stuck
    crashed: Sequence[SourceFrame] = ()  # the stack of its thread, innermost frame first


def fingerprint(crash: Crash) -> Fingerprint | None:
    """Return the fingerprint of a crash by the surest of what is known; None where nothing names a cause."""
    on_gpu = sorted(
        (f for f in crash.findings if f.how_known in _OF_THE_GPU and f.level is Level.ERROR and f.kernel),
        key=lambda f: -f.confidence,
    )
    if on_gpu:
        return _of_gpu(on_gpu[0])
    if any(f.rule == "memory-kill" and f.level is Level.ERROR for f in crash.findings):
        return _made("memory", "killed for lack of memory")
    if crash.hang:
        how = f"hang: {crash.process or 'a process'} {crash.stuck}" if crash.stuck else "hang"
        return _made("hang", how, frames=_frames(crash.stack))
    error = crash.error or ""
    cuda = parse_cuda_error(error)
    if cuda:  # noticed at some later call: its stack is another one each time
        return _made("gpu", cuda.name or cuda.message)
    if crash.died:
        return _made("death", f"{crash.died} of {crash.process or 'a process'}", frames=_frames(crash.crashed[::-1]))
    if found := _EXCEPTION.match(error):
        return _made("exception", found["type"], frames=_frames(crash.stack))
    if crash.signal:
        return _made("signal", crash.signal, frames=_frames(crash.crashed[::-1] or crash.stack))
    return _made("failure", crash.failure) if crash.failure else None


def _of_gpu(finding: Finding) -> Fingerprint:
    kernel = demangle(finding.kernel or "")
    chain: Chain = finding.chain or ((finding.location,) if finding.location else ())
    exception = finding.rule.removeprefix("gpu-core-")
    return _made("gpu", exception, kernel, tuple(map(_of_chain, chain[:_CHAIN])))


def _made(kind: str, exception: str, kernel: str | None = None, frames: tuple[str, ...] = ()) -> Fingerprint:
    base = _hash(kind, exception, kernel or "")
    own = _hash(kind, exception, kernel or "", *frames) if frames else base
    return Fingerprint(id=own, base=base, kind=kind, exception=exception, kernel=kernel, frames=frames)


def _hash(*parts: str) -> str:
    digest = hashlib.sha256("\0".join(parts).encode("utf-8", "backslashreplace")).hexdigest()
    return f"{PREFIX}{digest[:_DIGITS]}"


def _of_chain(frame: SourceFrame) -> str:
    """Return a frame of device code: its line counts, because one kernel inlines a function in many places."""
    function = f" {short_name(demangle(frame.function))}" if frame.function else ""
    return f"{_last(frame.file)}:{frame.line}{function}"


def _frames(stack: Sequence[SourceFrame]) -> tuple[str, ...]:
    """Return the innermost frames of the project's code, the innermost first; of a library's where there are none."""
    own = [frame for frame in reversed(stack) if not _LIBRARY.search(frame.file)]
    named = (f"{_module(frame.file)} {frame.function or '?'}" for frame in own or list(reversed(stack)))
    return tuple(dict.fromkeys(named))[:_FRAMES]


def _module(file: str) -> str:
    """Return a file as it is called wherever it is installed."""
    inside = _PACKAGES.sub("", file.replace("\\", "/"))
    return inside if inside != file else _last(file)


def _last(file: str) -> str:
    return file.replace("\\", "/").rsplit("/", 1)[-1]


# Weigh all findings of a run against each other, by small rules in a fixed order.
#
# Each source has its own reader, and each reader says how sure it is by itself. These rules weigh one source against
# another: two that name the same line make it surer, a broken GPU explains a software fault, a stack taken after the
# fact is only a hint. The figures are judgements, kept in one place for review.


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
