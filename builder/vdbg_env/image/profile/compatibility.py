"""Check a combination of CUDA, driver, architecture, compiler, torch and vLLM before anything is built.

What the tables rule out is refused, with the reason and the nearest choice that works; what is not in them gives a
warning, since tables age and a new toolkit is not an error.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from vdbg_env.common.errors import BadInput
from vdbg_env.image.profile.knowledge import CudaRow, Knowledge, Span, VllmRow, closest_version, version_key


@dataclass(frozen=True, kw_only=True)
class Combination:
    """What is built together; None where it is not known or not needed."""

    cuda: str
    arch: tuple[str, ...]
    gcc: str | None = None
    python: str | None = None
    torch: str | None = None
    vllm: str | None = None
    driver: str | None = None


@dataclass(frozen=True, kw_only=True)
class Conflict:
    """One result from the tables: `refused` cannot work, `warned` is not known or may surprise."""

    level: Literal["refused", "warned"]
    what: str
    instead: str | None = None


def require_compatible(combination: Combination, knowledge: Knowledge) -> tuple[str, ...]:
    """Return warnings; raises BadInput when the tables rule the combination out, with every reason at once."""
    judgements = tuple(judge(combination, knowledge))
    refused = [j for j in judgements if j.level == "refused"]
    if refused:
        raise BadInput(
            refused[0].what,
            cause=f"the tables of {knowledge.as_of} (images/knowledge) rule it out",
            next_step=refused[0].instead,
            details=tuple(j.what for j in refused[1:]),
        )
    return tuple(j.what + (f"; {j.instead}" if j.instead else "") for j in judgements)


def judge(combination: Combination, knowledge: Knowledge) -> Iterator[Conflict]:
    """Yield every refusal and warning that the tables give for a combination."""
    cuda = knowledge.cuda.get(".".join(combination.cuda.split(".")[:2]))
    if cuda is None:
        near = closest_version(combination.cuda, knowledge.cuda)
        yield _unknown(f"CUDA {combination.cuda}", near)
    else:
        yield from _arch(combination, cuda.arch, f"CUDA {cuda.version}", knowledge)
        yield from _driver(combination, cuda, knowledge)
        yield from _span("GCC", combination.gcc, cuda.gcc, f"nvcc of CUDA {cuda.version}")
    if combination.vllm is None:
        return
    vllm = knowledge.vllm.get(combination.vllm)
    if vllm is None:
        yield _unknown(f"vLLM {combination.vllm}", closest_version(combination.vllm, knowledge.vllm))
        return
    yield from _vllm(combination, vllm, knowledge)


def _vllm(combination: Combination, vllm: VllmRow, knowledge: Knowledge) -> Iterator[Conflict]:
    name = f"vLLM {vllm.version}"
    yield from _span("GCC", combination.gcc, vllm.gcc, name)
    yield from _span("Python", combination.python, vllm.python, name)
    if combination.torch and combination.torch != vllm.torch:
        yield Conflict(
            level="warned", what=f"{name} is built for torch {vllm.torch}, not {combination.torch}",
            instead=f"take torch=={vllm.torch} unless you know that the two fit",
        )  # fmt: skip
    short = ".".join(combination.cuda.split(".")[:2])
    if vllm.arch and short not in vllm.arch:
        yield _unknown(f"{name} with CUDA {combination.cuda}", closest_version(short, vllm.arch))
    elif vllm.arch:
        yield from _arch(combination, vllm.arch[short], name, knowledge)


def _arch(combination: Combination, known: tuple[str, ...], who: str, knowledge: Knowledge) -> Iterator[Conflict]:
    for arch in combination.arch:
        plain = arch.rstrip("af")
        if plain in known:
            continue
        everywhere = {a for row in knowledge.cuda.values() for a in row.arch}
        newer = version_key(plain) > max(map(version_key, everywhere), default=())
        if who.startswith("vLLM") and newer:
            yield Conflict(level="warned", what=f"architecture {arch} is newer than the tables of {who}")
        elif any(a.split(".")[0] == plain.split(".")[0] for a in known) and who.startswith("vLLM"):
            near = _nearest_arch(plain, known)
            yield Conflict(
                level="warned", what=f"{who} does not list architecture {arch}; it may build the kernels of {near}"
            )
        else:
            yield Conflict(
                level="refused", what=f"{who} does not build for architecture {arch}",
                instead=_arch_instead(plain, known, who, knowledge),
            )  # fmt: skip


def _arch_instead(arch: str, known: tuple[str, ...], who: str, knowledge: Knowledge) -> str:
    able = [v for v, row in knowledge.cuda.items() if arch in row.arch]
    if able and who.startswith("CUDA"):
        newest = max(able, key=version_key)
        return f"take a profile with CUDA {newest}, or --arch {_nearest_arch(arch, known)}"
    return f"--arch {_nearest_arch(arch, known)}; known are {', '.join(known)}"


def _nearest_arch(arch: str, known: tuple[str, ...]) -> str:
    lower = [a for a in known if version_key(a) <= version_key(arch)]
    return max(lower, key=version_key) if lower else min(known, key=version_key)


def _driver(combination: Combination, cuda: CudaRow, knowledge: Knowledge) -> Iterator[Conflict]:
    if combination.driver is None:
        return
    driver = version_key(combination.driver)
    if driver < version_key(cuda.driver.least):
        able = [v for v, row in knowledge.cuda.items() if version_key(row.driver.least) <= driver]
        other = f", or a profile with CUDA {max(able, key=version_key)}" if able else ""
        yield Conflict(
            level="refused",
            what=f"driver {combination.driver} cannot run CUDA {cuda.version}: {cuda.driver.least} is the least",
            instead=f"install driver {cuda.driver.own} or newer{other}; --arch X.Y builds for another machine",
        )
    elif driver < version_key(cuda.driver.own):
        yield Conflict(
            level="warned",
            what=f"driver {combination.driver} is older than {cuda.driver.own}, the one of CUDA {cuda.version}: "
            "compiled kernels run, PTX that must be compiled at start does not",
        )


def _span(what: str, version: str | None, span: Span, who: str) -> Iterator[Conflict]:
    if version is None:
        return
    have = version_key(version)
    if span.least and have < version_key(span.least):
        yield Conflict(
            level="refused", what=f"{who} needs {what} {span.least} or newer, and the base image has {version}",
            instead=f"take a base image with {what} {span.least} or newer",
        )  # fmt: skip
    if span.most and have[: len(version_key(span.most))] > version_key(span.most):
        yield Conflict(
            level="refused", what=f"{who} takes {what} up to {span.most}, and the base image has {version}",
            instead=f"take a base image with {what} {span.most} or older",
        )  # fmt: skip


def _unknown(what: str, near: str | None) -> Conflict:
    return Conflict(
        level="warned", what=f"{what} is not in the tables", instead=f"the nearest known is {near}" if near else None
    )
