"""Prove the line info of a built image: our reader over its libraries, cuobjdump inside it as second witness."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path

from gpucore.lineinfo import FileReport, LineinfoReport, Missing, Verdict
from vdbg_env.application.analysis.lineinfo_causes import EXPLAINED
from vdbg_env.application.analysis.verify_binaries import VerifyRequest, verify_binaries
from vdbg_env.build.builder import ImageBuilder
from vdbg_env.common.errors import EngineFailed, HostNotAble, NotProven
from vdbg_env.common.programs import Completed
from vdbg_env.crash.files import BinaryFile, Buffer
from vdbg_env.image.plan import ROOT, BuildPlan


def prove_image(builder: ImageBuilder, image_id: str, plan: BuildPlan, *, threads: int = 1) -> LineinfoReport:
    """Read every library the plan has built and ask the image's own cuobjdump about each.

    Raises HostNotAble when the image has no cuobjdump: a build is never proven by one witness alone. Raises NotProven
    when a folder that the plan has built holds no library, since whatever else was proven then is not all of it.
    """
    request = VerifyRequest(
        targets=tuple(f"{ROOT}/{artifact}" for artifact in plan.artifacts), witness="cuobjdump", threads=threads
    )
    inside = _InsideImage(builder, image_id)
    report = verify_binaries(request, source=inside, programs=inside, scratch=inside, tell=lambda *_: None)
    if inside.empty and report.verdict is not Verdict.NO_DEVICE_CODE:
        raise NotProven(
            f"{inside.empty[0]} of the image has no library or program",
            details=(f"the candidate is kept, untagged: {image_id}",),
            cause="the build put it elsewhere, or `artifacts` of the profile has a mistyped folder",
            next_step=f"docker run --rm --entrypoint find {image_id} {ROOT} -name '*.so*'",
        )
    return report


def require_proven(proof: LineinfoReport, image_id: str) -> None:
    """Refuse what is not proven; raises NotProven, which says what is missing, the usual cause and where to look."""
    unproven = proof.verdict is not Verdict.FULL
    doubtful = [f for f in proof.files if f.witness is None or not (f.witness.agrees or f.witness.explained)]
    if not unproven and not doubtful:
        return
    details = [*(_missing_line(f) for f in proof.files if f.verdict is not Verdict.FULL)]
    if unproven:
        raise NotProven(
            _summary(proof),
            details=(*details[:20], f"the candidate is kept, untagged: {image_id}"),
            cause=_cause(proof),
            next_step=f"vdbg-env verify {image_id}",
        )
    raise NotProven(
        "the second witness does not confirm the line info",
        details=(*(_doubt_line(f) for f in doubtful[:20]), f"the candidate is kept, untagged: {image_id}"),
        cause="the image's cuobjdump is older than the compiler, or was OOM-killed",
        next_step=f"vdbg-env verify {image_id}",
    )


def _summary(proof: LineinfoReport) -> str:
    counts = proof.counts
    if proof.verdict is Verdict.NO_DEVICE_CODE:
        return "the build left no device code to prove anything on"
    share = f"{proof.covered.instructions_covered:,} of {proof.covered.instructions:,} instructions"
    covered = f", rows cover {share} where there is a line table" if counts.partly else ""
    return f"{counts.with_debug_line} of {counts.with_code} cubins with code carry line info: {proof.verdict}{covered}"


def _cause(proof: LineinfoReport) -> str:
    match proof.verdict:
        case Verdict.PARTIAL | Verdict.NONE:
            return "; ".join(EXPLAINED[cause].reason for cause in proof.causes)
        case Verdict.NO_DEVICE_CODE:
            return "a prebuilt wheel was installed instead of compiling, or the build made no library with kernels"
        case _:
            return "a library is damaged, or packed in a way this program does not know"


def _missing_line(file: FileReport) -> str:
    if file.problem:
        return f"{file.path}: {file.problem}"
    units = sorted({_unit_name(m) for m in file.missing})
    more = f" and {len(units) - 3} more" if len(units) > 3 else ""
    named = f": {', '.join(units[:3])}{more}" if units else ""
    return f"{file.path}: {file.counts.with_debug_line} of {file.counts.with_code} with line info{named}"


def _unit_name(missing: Missing) -> str:
    if missing.functions:
        return f"{missing.functions[0].name} ({EXPLAINED[missing.cause].short})"
    return missing.identifier or (missing.kernels[0] if missing.kernels else "a cubin without a name")


def _doubt_line(file: FileReport) -> str:
    if file.witness is None:
        return f"{file.path}: not seen by the second witness"
    return f"{file.path}: {file.witness.tool}: {file.witness.reason}"


@dataclass(frozen=True)
class _InsideImage:
    """An image as a `BinarySource`, a `ProgramRunner` and `ScratchFiles`, which last while a program runs.

    `empty` are the targets in which nothing was found.
    """

    builder: ImageBuilder
    image_id: str
    lent: dict[str, Buffer] = field(default_factory=dict)
    empty: list[str] = field(default_factory=list)

    @contextmanager
    def open(self, target: str) -> Iterator[Iterator[BinaryFile]]:
        with self.builder.files(self.image_id, [target]) as files:
            found = (replace(file, path=Path(file.name)) for file in files)
            first = next(found, None)
            if first is None:
                self.empty.append(target)
                yield found
            else:
                yield chain((first,), found)

    def head(self, program: str) -> bytes:
        return b""  # only the workload of a run is looked into

    def which(self, program: str) -> str | None:
        ran = self.builder.execute(self.image_id, ["sh", "-c", f"command -v {program}"])
        return ran.stdout.strip() or None if ran.code == 0 else None

    def run(self, argv: Sequence[str], *, timeout_s: float = 60.0) -> Completed:
        try:
            return self.builder.execute(self.image_id, argv, timeout_s=timeout_s, lent=self.lent)
        except EngineFailed as error:
            raise HostNotAble(error.what, cause=error.cause, next_step=error.next_step) from error

    @contextmanager
    def lend(self, data: Buffer, suffix: str) -> Iterator[Path]:
        path = f"{ROOT}/lent-{len(self.lent)}{suffix}"
        self.lent[path] = data
        try:
            yield Path(path)
        finally:
            del self.lent[path]
