"""Write profiles, renderings and the result of a build: for people in a few lines, for programs as JSON."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from gpucore.lineinfo import FileReport
from vdbg_env.application.image.build import BuildResult
from vdbg_env.application.image.bundle import BundleResult
from vdbg_env.application.image.render import Rendering
from vdbg_env.application.ports.images import BuilderDescription
from vdbg_env.common.errors import BadInput
from vdbg_env.image.profile import ImageSpec
from vdbg_env.report.codec import document as doc
from vdbg_env.report.codec.document import Document, field
from vdbg_env.report.lineinfo import text as lineinfo
from vdbg_env.report.lineinfo.as_json import Verified


def build_text(result: BuildResult) -> str:
    """Return what a build prints at its end, once it is proven."""
    counts = result.proof.counts
    lines = [
        f"proven    {counts.with_debug_line} of {counts.with_code} cubins with code carry line info",
        f"          {lineinfo.coverage_text(result.proof.covered)}",
        *(f"          {_file_line(file)}" for file in result.proof.files if file.counts.with_code),
        f"image     {result.image_id}",
        *(f"tag       {tag}" for tag in result.tags),
        f"plan      {result.plan.digest}",
        f"builder   {result.builder.name} {result.builder.version}: {result.builder.why}",
    ]
    if result.pushed_digest:
        lines.append(f"pushed    {result.pushed_digest}")
    if result.saved:
        lines.append(f"saved     {result.saved}, {(result.saved_bytes or 0) / 1e6:.0f} MB")
    lines.append(f"time      {result.duration_s:.1f} s")
    return "\n".join([*lines, ""])


class Engine(Document, of=BuilderDescription):
    """What built the image, and why it was chosen."""

    name: str
    version: str
    why: str


class Built(Document, of=BuildResult):
    """A proven image: its names, its plan and the proof. Fields are only ever added.

    `digest` is the manifest digest where the engine has one, `pushed_digest` the registry's, `saved` the file written.
    """

    schema: Literal["vdbg-env/build/v1"]
    image_id: str
    digest: str | None
    tags: list[str]
    pushed_digest: str | None
    saved: str | None
    saved_bytes: int | None
    engine: Engine = field("builder")
    duration_s: float = field(lambda result, _: round(result.duration_s, 3))
    plan_digest: str = field("plan.digest")
    plan: dict[str, Any] = field(lambda result, _: result.plan.document())
    proof: Verified


class Bundled(Document, of=BundleResult):
    """A bundle: its file, the image in it, and the digest of the plan for the site. Fields are only ever added."""

    schema: Literal["vdbg-env/bundled/v1"]
    file: str = field(lambda result, _: str(result.path))
    bytes: int = field("size")
    image: str
    plan_digest: str


def _file_line(file: FileReport) -> str:
    archs = ", ".join(f"{arch} {c.with_code}" for arch, c in file.archs if c.with_code)
    seen = f"; {file.witness.tool} agrees" if file.witness and file.witness.agrees else ""
    return f"{file.path}: {file.counts.with_debug_line} of {file.counts.with_code} ({archs}){seen}"


class ProfileEntry(Document):
    """A build profile; `error` says why one cannot be used, and then nothing more is known of it."""

    name: str = field(lambda row, _: row[0])
    file: str = field(lambda row, _: row[2].file)
    shipped: bool = field(lambda row, _: row[2].shipped)
    summary: str = field(lambda row, _: _of_spec(row[1], lambda spec: spec.summary), may_be_absent=True)
    base: str = field(lambda row, _: _of_spec(row[1], lambda spec: spec.base.image), may_be_absent=True)
    cuda: str | None = field(lambda row, _: _of_spec(row[1], lambda spec: spec.toolchain.cuda), may_be_absent=True)
    error: str | None = field(lambda row, _: row[1].what if isinstance(row[1], BadInput) else None)


class Profiles(Document):
    """The build profiles that ship, and those of the user. Fields are only ever added."""

    schema: Literal["vdbg-env/images/v1"]
    profiles: list[ProfileEntry] = field(lambda rows, _: rows)


def _of_spec(found: ImageSpec | BadInput, value: Callable[[ImageSpec], object]) -> object:
    return value(found) if isinstance(found, ImageSpec) else doc.ABSENT


class Rendered(Document, of=Rendering):
    """A folder that other tools build and run from. Fields are only ever added."""

    schema: Literal["vdbg-env/render/v1"]
    folder: str = field(lambda rendering, _: str(rendering.folder))
    files: list[str]
    plan_digest: str | None = field("digest")
    next_step: str
