"""Build an image from a plan, prove its line info, and only then give it a name."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gpucore.lineinfo import FileReport, LineinfoReport
from vdbg_env.build.builder import (
    BuilderDescription,
    BuildEvent,
    BuildFailed,
    BuildOrder,
    BuildxOptions,
    Built,
    ImageBuilder,
    StepStarted,
)
from vdbg_env.build.prove import prove_image, require_proven
from vdbg_env.common.errors import EngineFailed
from vdbg_env.crash.verify_text import coverage_text, verify_json
from vdbg_env.image.context import ROOT
from vdbg_env.image.dockerfile import build_context, step_titles
from vdbg_env.image.plan import LABEL_BUILT, LABEL_DIGEST, LABEL_PROOF, BuildPlan
from vdbg_env.image.profile import Dialect

PREPARED = "vdbg/prepared"
"""The name of the fetching half of an offline build, while the compiling half is built on it."""

Tell = Callable[[BuildEvent], None]


@dataclass(frozen=True, kw_only=True)
class BuildSettings:
    """What is of this machine and of this call, and so in no plan: values for arguments, secrets, names, jobs."""

    tags: tuple[str, ...] = ()
    build_args: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, Path] = field(default_factory=dict)
    jobs: int | None = None
    offline_compile: bool = False
    no_cache: bool = False
    push: bool = False
    output: Path | None = None
    threads: int = 1
    buildx: BuildxOptions = field(default_factory=BuildxOptions)


@dataclass(frozen=True, kw_only=True)
class BuildResult:
    """A proven image: its id, names, plan and proof, and the builder that built it; time in seconds, sizes in bytes.

    `digest` is the manifest digest where the builder has one, `pushed_digest` the registry's, `saved` the file written.
    """

    image_id: str
    tags: tuple[str, ...]
    plan: BuildPlan
    proof: LineinfoReport
    builder: BuilderDescription
    duration_s: float
    digest: str | None = None
    pushed_digest: str | None = None
    saved: str | None = None
    saved_bytes: int | None = None


def build_image(
    plan: BuildPlan, settings: BuildSettings, *, builder: ImageBuilder, tell: Tell, clock: Callable[[], float]
) -> BuildResult:
    """Build, prove, tag, save and push; `tell` gets every event of the builder at once.

    Raises EngineFailed when a step fails, with the step, the reason and its last lines; NotProven when the libraries
    built do not all carry line info, in which case the image keeps no name.
    """
    started = clock()
    built = _build(plan, settings, builder, tell)
    proof = prove_image(builder, built.image_id, plan, threads=settings.threads)
    require_proven(proof, built.image_id)
    # What compiles without network is a separate plan on what was fetched; the image is the whole plan's.
    made = json.dumps([f"{ROOT}/{artifact}" for artifact in plan.artifacts])
    labels = {LABEL_PROOF: proof_label(proof), LABEL_DIGEST: plan.digest, LABEL_BUILT: made}
    image_id = builder.tag(built.image_id, settings.tags, labels)
    saved_bytes = builder.save((*settings.tags, image_id)[0], settings.output) if settings.output else None
    pushed_digest = _push(builder, settings.tags) if settings.push else None
    return BuildResult(
        image_id=image_id,
        tags=settings.tags,
        plan=plan,
        proof=proof,
        builder=builder.describe(),
        digest=built.digest,
        pushed_digest=pushed_digest,
        saved=str(settings.output) if settings.output else None,
        saved_bytes=saved_bytes,
        duration_s=clock() - started,
    )


def proof_label(proof: LineinfoReport) -> str:
    """Return the proof in one short line for the image's label; all of it is in the metadata file."""
    counts = proof.counts
    witnesses = {f.witness.tool for f in proof.files if f.witness and f.witness.agrees}
    seen = f"; seen by {', '.join(sorted(witnesses))} too" if witnesses else ""
    covered = f"rows cover {proof.covered.instructions_covered} of {proof.covered.instructions} instructions"
    cubins = f"{counts.with_debug_line} of {counts.with_code} cubins with code carry .debug_line"
    return f"{proof.verdict}: {cubins}; {covered}{seen}"


def dialect_of(builder: BuilderDescription) -> Dialect:
    """Return which Dockerfile instructions a builder is known to take; the conservative ones unless it says more."""
    return "buildkit" if "cache-mounts" in builder.capabilities else "classic"


def _build(plan: BuildPlan, settings: BuildSettings, builder: ImageBuilder, tell: Tell) -> Built:
    if not settings.offline_compile:
        return _run(plan, settings, builder, tell)
    rest = fetch_first(plan, settings, builder, tell)
    return _run(rest, replace(settings, buildx=replace(settings.buildx, cache_from=(), cache_to=())), builder, tell)


def fetch_first(plan: BuildPlan, settings: BuildSettings, builder: ImageBuilder, tell: Tell) -> BuildPlan:
    """Build what fetches, and return what is left: a plan without network, on the image that this has made."""
    # One Dockerfile cannot take the network from some of its steps on every builder (RUN --network needs a newer
    # frontend), so what fetches is built first and what compiles is built on that image, without network.
    name = f"{PREPARED}:{plan.digest.removeprefix('sha256:')[:12]}"
    fetch, compile_only = plan.split_before_compile(name)
    # What a registry may keep is what was fetched; attestations are of the image that gets the name.
    fetching = replace(settings, buildx=replace(settings.buildx, sbom=None, provenance=None))
    builder.tag(_run(fetch, fetching, builder, tell).image_id, [name], {})
    return compile_only


def _run(plan: BuildPlan, settings: BuildSettings, builder: ImageBuilder, tell: Tell) -> Built:
    dialect = dialect_of(builder.describe())
    order = BuildOrder(
        plan=plan,
        context=build_context(plan, dialect),
        build_args=settings.build_args,
        secrets=settings.secrets,
        jobs=settings.jobs,
        no_cache=settings.no_cache,
        buildx=settings.buildx,
    )
    built: Built | None = None
    with closing(builder.build(order)) as events:  # to close it early is to cancel, so it is read to its end
        for event in _with_titles(events, step_titles(plan, dialect)):
            tell(event)
            if isinstance(event, BuildFailed):
                raise _failure(event)
            built = event if isinstance(event, Built) else built
    if built is None:
        raise EngineFailed(
            "the builder stopped without saying how the build ended",
            cause="it was ended, or its connection broke",
            next_step="vdbg-env doctor",
        )
    return built


def _with_titles(events: Iterator[BuildEvent], titles: tuple[str, ...]) -> Iterator[BuildEvent]:
    """Give each step the plan's own title, where the builder numbers its steps as our Dockerfile does."""
    known: dict[str | None, str] = {}
    for event in events:
        match event:
            case StepStarted(number=int(number), total=total) if number <= len(titles) == total:
                known[event.key] = titles[number - 1]
                yield replace(event, title=known[event.key])
            case BuildFailed():
                yield replace(event, title=known.get(event.key, event.title))
            case _:
                yield event


def _failure(event: BuildFailed) -> EngineFailed:
    status = f" with exit status {event.code}" if event.code is not None else ""
    return EngineFailed(
        f"the build failed at: {event.title}{status}",
        cause=event.cause or None,
        next_step=event.next_step or "the same command with --verbose shows every line",
        details=tuple(f"| {line}" for line in event.tail),
    )


def _push(builder: ImageBuilder, tags: tuple[str, ...]) -> str | None:
    digest = None
    for tag in tags:
        for progress in builder.push(tag):
            digest = progress.digest or digest
    return digest


def build_text(result: BuildResult) -> str:
    """Return what a build prints at its end, once it is proven."""
    counts = result.proof.counts
    lines = [
        f"proven    {counts.with_debug_line} of {counts.with_code} cubins with code carry line info",
        f"          {coverage_text(result.proof.covered)}",
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


def _file_line(file: FileReport) -> str:
    archs = ", ".join(f"{arch} {c.with_code}" for arch, c in file.archs if c.with_code)
    seen = f"; {file.witness.tool} agrees" if file.witness and file.witness.agrees else ""
    return f"{file.path}: {file.counts.with_debug_line} of {file.counts.with_code} ({archs}){seen}"


def build_json(result: BuildResult) -> dict[str, Any]:
    """Return the result as docs/schemas/build-v1.schema.json describes it."""
    return {
        "schema": "vdbg-env/build/v1",
        "image_id": result.image_id,
        "digest": result.digest,
        "tags": list(result.tags),
        "pushed_digest": result.pushed_digest,
        "saved": result.saved,
        "saved_bytes": result.saved_bytes,
        "engine": {"name": result.builder.name, "version": result.builder.version, "why": result.builder.why},
        "duration_s": round(result.duration_s, 3),
        "plan_digest": result.plan.digest,
        "plan": result.plan.document(),
        "proof": verify_json(result.proof),
    }
