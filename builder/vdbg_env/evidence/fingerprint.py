"""Give crashes of one cause one name, whichever run, rank or host they happened in.

What goes in is what names the cause and stays: exception, kernel and inline chain of a GPU fault; which process died,
and how; type of an exception and its innermost frames in code that is not a library's; the signal. What changes from
crash to crash is left out: addresses, process numbers, host names, ranks, folders of an installation, and of Python
frames the line numbers.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from gpucore.dwarf import Chain, SourceFrame
from gpucore.mangling import demangle, short_name
from vdbg_env.evidence.finding import Finding, HowKnown, Level
from vdbg_env.evidence.logs.cuda_error import parse_cuda_error

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
