"""`vdbg-env build`, `bundle` and `render`: from flags to an image, a file for an air-gapped site, or a folder."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TextIO

import click

from vdbg_env.build.build import (
    BuildResult,
    BuildSettings,
    WhatToBuild,
    build_image,
    build_json,
    build_machine,
    build_text,
    default_tag,
    dialect_of,
    plan_here,
    read_request,
)
from vdbg_env.build.builder import (
    BuilderName,
    BuildEvent,
    BuildFailed,
    BuildWarning,
    BuildxOptions,
    Built,
    ImageBuilder,
    OutputLine,
    StepEnded,
    StepStarted,
)
from vdbg_env.common import console
from vdbg_env.common.console import json_text, printable
from vdbg_env.common.errors import BadInput, quoted
from vdbg_env.common.flags import Choice, Sectioned, flag, given_except, given_options, named_values, takes
from vdbg_env.common.plug_ins import COMMANDS, plug_in
from vdbg_env.image.plan import BuildPlan, build_args, dockerfile, parallelism
from vdbg_env.image.profile import BuildRequest, Dialect, Site, parse_reference
from vdbg_env.image.settings import RunSettings, Seccomp, parse_dumps, parse_gpu, warnings

if TYPE_CHECKING:
    from rich.live import Live
    from rich.table import Table

    from vdbg_env.build.render import Rendering

_ONTO = "Add lines to an existing image"
_RESULT = "The result"
_SECTIONS = (_ONTO, "Network, indexes and secrets", "With buildx", _RESULT)


class _Builders(Choice):
    """The builders that `--engine` names; what was one of them once is refused with what took its place."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "classic":
            self.fail(
                "the classic builder is no longer used. Instead: apt-get install docker-buildx, or --engine buildkit",
                param, ctx,
            )  # fmt: skip
        return super().convert(value, param, ctx)


@dataclass(frozen=True, kw_only=True)
class BuildFlags:
    """The flags of `build` beyond what to build."""

    engine: Literal["auto", "docker", "buildx", "buildkit", "host"] = flag(
        default="auto", choice=_Builders, show_default=True,
        help="Builder backend. `auto` picks one and prints the reason; `host` builds in a folder of this machine.",
    )  # fmt: skip
    dry_run: bool = flag(default=False, section=_RESULT, help="Print the Dockerfile and stop.")
    tags: tuple[str, ...] = flag(
        "--tag", "-t", default=(), metavar="NAME", section=_RESULT,
        help="Name of the proven image; repeatable.",
    )  # fmt: skip
    push: bool = flag(default=False, section=_RESULT, help="Push every tag after the proof.")
    output: Path | None = flag(path={"dir_okay": False}, section=_RESULT, help="Also write a tar for `docker load`.")
    metadata_file: Path | None = flag(
        path={"dir_okay": False}, section=_RESULT, help="Write digest and proof as JSON to this file."
    )
    bundle: Path | None = flag(help="Build from this file of `vdbg-env bundle`.")
    no_cache: bool = flag(default=False, help="Ignore cached layers.")
    as_json: bool = flag("--json", default=False, section=_RESULT, help="Print the result as JSON.")
    verbose: bool = flag("--verbose", "-v", default=False, section=_RESULT, help="Show all output of the steps.")
    quiet: bool = flag("--quiet", "-q", default=False, section=_RESULT, help="Show warnings and the result only.")


@dataclass(frozen=True, kw_only=True)
class OntoFlags:
    """The flags of `build --onto`, which a plug-in does."""

    onto: str | None = flag(
        metavar="IMAGE", section=_ONTO, help="Add line tables to the kernels of this image, and change nothing else."
    )
    kernels: tuple[str, ...] = flag("--kernel", default=(), metavar="NAME", section=_ONTO, help="Only this kernel.")
    core: str | None = flag(path={"exists": True}, section=_ONTO, help="Only the kernel and GPU of this GPU core dump.")
    toolkit: Path | None = flag(
        "--compiler", path={"exists": True, "file_okay": False}, metavar="DIR", section=_ONTO,
        help="Use this installed CUDA toolkit, as vLLM for CUDA 12 needs.",
    )  # fmt: skip
    work: Path | None = flag(
        path={"file_okay": False}, section=_ONTO,
        help="Folder for sources, compiler and results.",
    )  # fmt: skip
    accept_other_headers: bool = flag(
        default=False, section=_ONTO,
        help="Accept lines of other headers (CUTLASS) than the image's vLLM was built with.",
    )  # fmt: skip


# Flags of `build` that a bundle does not decide, and those that --onto takes; all others are refused with them.
_FREE_WITH_BUNDLE = {
    "bundle", "jobs", "engine", "tags", "push", "output", "metadata_file", "no_cache", "as_json", "verbose", "quiet",
    "sbom", "provenance",
}  # fmt: skip
_OF_ONTO = {one.name for one in fields(OntoFlags)}
_FREE_WITH_ONTO = _OF_ONTO | {
    "target", "archs", "deps", "jobs", "tags", "metadata_file", "as_json", "verbose", "quiet", "debug", "guard",
}  # fmt: skip


# What `--help` lists; `--help-all` has the rest.
_EVERYDAY = {"profile", "debug", "source", "archs", "target", "jobs"}
_EVERYDAY_OF_BUILD = {"onto", "core", "object_cache", "tags", "dry_run"}


@click.command("build", cls=Sectioned, sections=_SECTIONS, everyday=_EVERYDAY | _EVERYDAY_OF_BUILD)
@takes(what=WhatToBuild, flags=BuildFlags, onto=OntoFlags, buildx=BuildxOptions)
def build_command(what: WhatToBuild, flags: BuildFlags, onto: OntoFlags, buildx: BuildxOptions) -> int:
    """Build a debug image in which every cubin is proven to carry line info.

    Without that proof the image gets no tag. Exit status: 0 proven and tagged, 1 the build failed, 2 bad input, 3 built
    but some cubins lack line info, 4 with --onto: lines would be of other headers than the image's.

    \b
    Examples:
      vdbg-env build --lineinfo --profile sample
      vdbg-env build --lineinfo --arch 9.0 --tag debug/vllm:0.33.0-lineinfo
      vdbg-env build --lineinfo --source ./vllm --target _moe_C_stable_libtorch
      vdbg-env build --onto vllm/vllm-openai:v0.33.0 --core FILE --tag vllm:lines
    """
    if onto.onto:
        return _build_onto(what, flags, onto)
    if given := given_options(click.get_current_context(), _OF_ONTO):
        raise BadInput(
            f"{', '.join(option.opts[0] for option in given)} has no meaning without --onto",
            next_step="--onto IMAGE adds line tables to an image; --target EXT builds one extension from source",
        )
    if flags.bundle:
        _refuse_decided()
    if flags.dry_run:
        request, library = read_request(what)
        plan = plan_here(request, library)
        show_notes((*request.notes, *plan.notes), plan.warnings)
        click.echo(dockerfile(plan, request.dialect), nl=False)
        return 0
    result = _build(what, flags, buildx)
    _show_result(flags, json_text(build_json(result)), build_text(result))
    return 0


def _build(what: WhatToBuild, flags: BuildFlags, buildx: BuildxOptions) -> BuildResult:
    tags = _names(flags.tags)
    if flags.push and not tags:
        raise BadInput("--push needs the name to push to", next_step="add --tag REGISTRY/NAME:TAG")
    for path in (flags.metadata_file, flags.output):
        require_writable(path)
    if flags.engine == "host":
        _refuse_of_images()
    builder = _builder(flags.engine)
    described = builder.describe()
    from vdbg_env.build.buildkit import buildx_words

    if (words := tuple(buildx_words(buildx))) and described.name != "buildx":
        raise BadInput(
            f"{words[0].partition('=')[0]} is an option of buildx, and {described.name} builds here",
            cause=described.why,
            next_step="install docker-buildx (vdbg-env doctor says how), or leave it out",
        )
    settings = BuildSettings(
        tags=tags, no_cache=flags.no_cache, push=flags.push, output=flags.output, threads=os.cpu_count() or 1,
        buildx=buildx,
    )  # fmt: skip
    if flags.bundle:
        return _build_bundle(flags.bundle, what, flags, settings, builder)
    request, library = read_request(what, dialect=dialect_of(described))
    if described.name == "host":  # a folder has no entry point, and our new release must not compile everything again
        request = replace(request, guard=None)
    plan = plan_here(request, library)
    jobs = parallelism(
        build_machine(), architectures=len(plan.arch), gib_per_job=plan.memory_per_job_gib, requested=request.jobs
    )
    if not flags.quiet:
        show_notes(
            (f"builder {described.name}: {described.why}", f"MAX_JOBS {jobs.sum}", *request.notes, *plan.notes), ()
        )
    show_notes((), (*plan.warnings, *((jobs.warning,) if jobs.warning else ())))
    settings = replace(
        settings,
        tags=tags or (() if described.name == "host" else (default_tag(plan, request),)),
        build_args=build_args(jobs, request.site),
        secrets={secret.id: Path(secret.path) for secret in request.secrets},
        jobs=jobs.max_jobs,
        offline_compile=request.offline_compile,
    )
    with build_display(quiet=flags.quiet, verbose=flags.verbose) as display:
        return build_image(plan, settings, builder=builder, tell=display.tell, clock=time.monotonic)


def _names(tags: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(str(parse_reference(tag, "--tag")) for tag in tags)


def _build_bundle(
    path: Path, what: WhatToBuild, flags: BuildFlags, settings: BuildSettings, builder: ImageBuilder
) -> BuildResult:
    """Build what is in a bundle: everything but the number of compilers, names and outputs was decided with it."""
    from vdbg_env.build.bundle import build_from_bundle, open_bundle
    from vdbg_env.engine import trees

    with open_bundle(path) as bundle:
        plan = bundle.plan(trees.digest)
        jobs = parallelism(
            build_machine(), architectures=len(plan.arch), gib_per_job=plan.memory_per_job_gib, requested=what.jobs
        )
        settings = replace(settings, build_args=build_args(jobs, Site()), jobs=jobs.max_jobs)
        with build_display(quiet=flags.quiet, verbose=flags.verbose) as display:
            return build_from_bundle(
                path, bundle.manifest, plan, settings, builder=builder, tell=display.tell, clock=time.monotonic
            )


def _builder(wanted: BuilderName) -> ImageBuilder:
    from vdbg_env.build.buildkit import choose_builder  # the client of the engine takes a while to load

    return choose_builder(wanted)


def _show_result(flags: BuildFlags, document: str, text: str) -> None:
    """Print a result, and write it to --metadata-file."""
    if flags.metadata_file:
        try:
            flags.metadata_file.write_text(document)
        except OSError as error:
            raise BadInput(f"{flags.metadata_file} cannot be written: {error.strerror}") from None
    click.echo(document if flags.as_json else text, nl=False)


def show_notes(notes: tuple[str, ...], warnings: tuple[str, ...]) -> None:
    """Print notes and warnings on the error stream."""
    console.note(*(f"note: {text}" for text in notes), *(f"warning: {text}" for text in warnings))


def require_writable(path: Path | None) -> None:
    """Refuse before hours of building, not after."""
    if path is not None and not os.access(path.parent or Path(), os.W_OK | os.X_OK):
        raise BadInput(
            f"{path} cannot be written",
            cause="its folder is missing or not yours",
            next_step=f"mkdir -p {quoted(path.parent)}, or name a file in another folder",
        )


def _refuse_of_images() -> None:
    """Refuse flags that have no effect on a folder of this machine."""
    given = given_options(click.get_current_context(), {"base", "tags", "push", "output", "bundle"})
    if given:
        raise BadInput(
            f"{given[0].opts[0]} is for an image, and --engine host makes a folder of this machine",
            next_step=f"leave out {given[0].opts[0]}, or start Docker and leave out --engine host",
        )


def _refuse_decided() -> None:
    """Refuse flags that say what to build: with a bundle that is decided."""
    given = [option.opts[0] for option in given_except(click.get_current_context(), _FREE_WITH_BUNDLE)]
    if given:
        raise BadInput(
            f"--bundle and {', '.join(given)} exclude one another",
            cause="a bundle is one plan, decided where it was made",
            next_step="leave them out, or make another bundle with them",
        )


def _build_onto(what: WhatToBuild, flags: BuildFlags, onto: OntoFlags) -> int:
    """Have the plug-in add line tables to an image; raises BadInput for a flag that has no meaning with that."""
    require_writable(flags.metadata_file)
    wrong = [max(option.opts, key=len) for option in given_except(click.get_current_context(), _FREE_WITH_ONTO)]
    if wrong:
        raise BadInput(
            f"{', '.join(wrong)} has no meaning with --onto",
            cause="the image and its vLLM are those of the image named; only kernels are compiled",
            next_step="vdbg-env build --onto IMAGE --core FILE --tag NAME",
        )
    with build_display(quiet=flags.quiet, verbose=flags.verbose) as display:
        document, text = plug_in(COMMANDS, "build.onto")(what, onto, _names(flags.tags), display.tell)
    _show_result(flags, json_text(document), text)
    return 0


@dataclass(frozen=True, kw_only=True)
class BundleFlags:
    """The flags of `bundle` beyond what to build."""

    engine: Literal["auto", "docker", "buildx", "buildkit"] = flag(
        default="auto", choice=_Builders, show_default=True,
        help="Builder backend. `auto` picks one and prints the reason.",
    )  # fmt: skip
    tag: str | None = flag("--tag", "-t", metavar="NAME", help="Name of the proven image; the site may choose another.")
    no_cache: bool = flag(default=False, help="Ignore cached layers.")
    as_json: bool = flag("--json", default=False, help="Print what was written as JSON.")
    verbose: bool = flag("--verbose", "-v", default=False, help="Show all output of the steps.")
    quiet: bool = flag("--quiet", "-q", default=False, help="Show warnings and the result only.")


@click.command("bundle", cls=Sectioned, everyday=_EVERYDAY | {"tag", "as_json"})
@click.argument("file", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path))
@takes(what=WhatToBuild, flags=BundleFlags)
def bundle_command(file: Path, what: WhatToBuild, flags: BundleFlags) -> int:
    """Pack a build into one file, for a site without network.

    The file holds an image with the base, apt packages, wheels, tools and external projects, the source, and the
    remaining steps, which compile without network. The site needs vdbg-env and a Docker Engine.

    \b
    Example:
      vdbg-env bundle --lineinfo --arch 9.0 vllm-debug.tar
      vdbg-env build --bundle vllm-debug.tar                    # at the site
    """
    from vdbg_env.build.bundle import bundle_json, write_bundle

    require_writable(file)
    builder = _builder(flags.engine)
    described = builder.describe()
    request, library = read_request(replace(what, offline_compile=True), dialect=dialect_of(described))
    plan = plan_here(request, library)
    jobs = parallelism(build_machine(), architectures=len(plan.arch), gib_per_job=plan.memory_per_job_gib)
    if not flags.quiet:
        show_notes((f"builder {described.name}: {described.why}", *request.notes, *plan.notes), ())
    show_notes((), plan.warnings)
    settings = BuildSettings(
        tags=(flags.tag or default_tag(plan, request),),
        build_args=build_args(jobs, request.site),
        secrets={secret.id: Path(secret.path) for secret in request.secrets},
        no_cache=flags.no_cache,
    )
    with build_display(quiet=flags.quiet, verbose=flags.verbose) as display:
        result = write_bundle(plan, settings, file, builder=builder, tell=display.tell)
    if flags.as_json:
        click.echo(json_text(bundle_json(result)), nl=False)
    else:
        console.show(f"{result.path}: {result.size / 1e6:,.0f} MB, plan {result.plan_digest}\n")
        console.note(f"next: carry it to the site, and there: vdbg-env build --bundle {quoted(result.path.name)}")
    return 0


@dataclass(frozen=True, kw_only=True)
class RenderFlags:
    """The flags of `render` beyond what to build."""

    format: Literal["dockerfile", "compose", "k8s", "apptainer", "slurm"] = flag(
        default="dockerfile", show_default=True, help="What to render."
    )
    existing: Path | None = flag(
        "--for", "--for-lws", metavar="FILE", path={"exists": True, "dir_okay": False},
        help="With --format k8s: write a patch that adds guard to the Deployment, StatefulSet, Job, JobSet or "
        "LeaderWorkerSet in FILE.",
    )  # fmt: skip
    runbook: str | None = flag(metavar="NAME", help="With --for: run this runbook once in the pod, instead of guard.")
    inputs: Mapping[str, str] = flag(
        "-i", "--input", default=(), multiple=True, callback=named_values, metavar="NAME=VALUE",
        help="With --runbook: set an input; repeatable.",
    )  # fmt: skip
    dialect: Dialect = flag(default="classic", show_default=True, help="Dockerfile dialect; buildkit uses RUN --mount.")
    image: str | None = flag(
        metavar="NAME", help="Image name. [default: that of `build`, with -unproven if built from DIR]"
    )
    gpu: str = flag(
        default="runtime", show_default=True, help="cdi, runtime or none; runtime:8 requests eight in a pod."
    )
    dumps: str = flag(default="vdbg-dumps", show_default=True, help="Volume or folder for dumps, or none.")
    seccomp: Seccomp = flag(
        default="ptrace", show_default=True, help="Seccomp profile; in a pod, ptrace needs a file on every node."
    )
    as_json: bool = flag("--json", default=False, help="Print what was written as JSON.")


@click.command(
    "render",
    cls=Sectioned,
    everyday={"profile", "source", "archs", "format", "existing", "runbook", "inputs", "image", "gpu"},
)
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@takes(flags=RenderFlags, what=WhatToBuild)
def render_command(folder: Path, flags: RenderFlags, what: WhatToBuild) -> int:
    """Write a Dockerfile and its context, or manifests, to DIR.

    \b
    Example:
      vdbg-env render --profile sample ./sample-image
      vdbg-env render --format k8s --gpu none ./manifests
      vdbg-env render --format k8s --for deployment.yaml ./armed
      vdbg-env render --format k8s --for llm.yaml --runbook host-crash ./debug
      vdbg-env render --format slurm ./job
    """
    from vdbg_env.build.render import render

    if flags.existing:
        if flags.format != "k8s":
            raise click.UsageError("--for renders a patch: add --format k8s")
        if flags.inputs and not flags.runbook:
            raise click.UsageError("--input is of a runbook: add --runbook NAME")
        if flags.dumps == "none":
            raise click.UsageError("--for arms a workload, whose dumps need a volume or folder: --dumps NAME")
        return _render_patch(flags.existing, folder, flags)
    if flags.runbook or flags.inputs:
        raise click.UsageError("--runbook runs in a pod that you have: add --for FILE")
    request, library = read_request(what, dialect=flags.dialect)
    plan = plan_here(request, library)
    run = _run_settings(plan, request, flags)
    rendering = render(
        plan, run, folder, format=flags.format, dialect=flags.dialect, pulled=run.image if flags.image else None
    )
    if flags.format in {"k8s", "slurm"}:  # of an image that is there: nothing is built from them
        show_notes((), warnings(run))
    else:
        show_notes((*request.notes, *plan.notes), (*plan.warnings, *warnings(run)))
    _show_rendering(rendering, as_json=flags.as_json)
    return 0


def _run_settings(plan: BuildPlan, request: BuildRequest, flags: RenderFlags) -> RunSettings:
    # The name that `build` gives means that the image is proven; an image that another builder makes is not.
    own = default_tag(plan, request) + ("-unproven" if flags.format in {"dockerfile", "compose"} else "")
    return RunSettings(
        image=str(parse_reference(flags.image or own, "--image")),
        gpu=parse_gpu(flags.gpu),
        dumps=None if flags.dumps == "none" else parse_dumps(flags.dumps),
        seccomp=flags.seccomp,
        command=("sleep", "infinity"),
    )


def _render_patch(existing: Path, folder: Path, flags: RenderFlags) -> int:
    from vdbg_env.build.render import render_patch
    from vdbg_env.image.patch import MOST_BYTES

    with existing.open("rb") as file:
        data = file.read(MOST_BYTES + 1)  # one more: a longer file is refused, and a device has no end
    rendering, notes = render_patch(
        data.decode(errors="replace"),
        str(existing),
        folder,
        image=str(parse_reference(flags.image, "--image")) if flags.image else None,
        dumps=parse_dumps(flags.dumps),
        grace_s=RunSettings.stop_grace_s,
        runbook=flags.runbook or "",
        inputs=flags.inputs,
        without_requests=_without_requests(flags.runbook, flags.inputs) if flags.runbook else None,
    )
    show_notes(notes, ())
    _show_rendering(rendering, as_json=flags.as_json)
    return 0


def _without_requests(runbook: str, inputs: Mapping[str, str]) -> str | None:
    """Return why a pod would not begin this runbook on a server with these inputs; raises BadInput for wrong ones."""
    from vdbg_env.run.library import runbook_library, runbook_names
    from vdbg_env.runbook.model import Manual

    if runbook not in runbook_names() and ("/" in runbook or runbook.endswith((".yaml", ".yml"))):
        raise BadInput(
            f"{runbook} is a file of this machine, and a pod does not have it",
            next_step="vdbg-env runbooks list names those that every installation has",
        )
    known = runbook_library().load(runbook)
    if unknown := sorted(inputs.keys() - known.inputs.keys()):
        raise BadInput(
            f"runbook {runbook!r} has no input {unknown[0]!r}", next_step=f"vdbg-env runbooks show {runbook}"
        )
    if "request" not in known.inputs or inputs.get("request"):
        return None
    asked = (step.question.unattended for step in known.steps if isinstance(step, Manual))
    return next(filter(None, asked), None)


def _show_rendering(rendering: Rendering, *, as_json: bool) -> None:
    if as_json:
        from vdbg_env.build.render import render_json

        click.echo(json_text(render_json(rendering)), nl=False)
        return
    what = f", plan {rendering.digest}" if rendering.digest else ""
    console.show(f"{rendering.folder}: {len(rendering.files)} file{'s' * (len(rendering.files) != 1)}{what}\n")
    console.note(f"next: {rendering.next_step}")


# How a build is shown as it happens: live steps on a terminal, plain lines elsewhere; both on the error stream.


def build_display(*, quiet: bool, verbose: bool, stream: TextIO | None = None) -> PlainDisplay | LiveDisplay:
    """Return the display that fits: none when quiet, live on a terminal, plain lines elsewhere or when verbose."""
    target = stream or sys.stderr
    if quiet:
        return PlainDisplay(target, level="warnings")
    if verbose or not target.isatty():
        return PlainDisplay(target, level="output" if verbose else "steps")
    return LiveDisplay(target)


class PlainDisplay:
    """One line an event; `level` says how much: warnings only, steps, or every line of output too."""

    def __init__(self, stream: TextIO, *, level: str) -> None:
        self._stream = stream
        self._level = level
        self._titles: dict[str, str] = {}

    def __enter__(self) -> PlainDisplay:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def tell(self, event: BuildEvent) -> None:
        match event:
            case StepStarted():
                self._titles[event.key] = _title(event)
                self._line(self._titles[event.key], "steps")
            case StepEnded():
                self._line(f"{_outcome(event)}: {self._titles.get(event.key, event.key)}", "steps")
            case OutputLine():
                self._line(f"  | {event.text}", "output")
            case BuildWarning():
                self._line(f"warning: {event.text}", "warnings")
            case Built() | BuildFailed():  # the command itself reports these, with what to do next
                pass

    def _line(self, text: str, level: str) -> None:
        levels = ("warnings", "steps", "output")
        if levels.index(level) <= levels.index(self._level):
            print(printable(text, keep="\t"), file=self._stream, flush=True)


class LiveDisplay:
    """Finished steps scroll away above; the running ones stay below with their elapsed time and last line."""

    def __init__(self, stream: TextIO, *, clock: Callable[[], float] = time.monotonic) -> None:
        from rich.console import Console

        self._console = Console(file=stream)
        self._clock = clock
        self._running: dict[str, tuple[str, float]] = {}
        self._last_line: dict[str, str] = {}
        self._live: Live | None = None

    def __enter__(self) -> LiveDisplay:
        from rich.live import Live

        self._live = Live(console=self._console, get_renderable=self._table, refresh_per_second=8, transient=True)
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._live.stop()

    def tell(self, event: BuildEvent) -> None:
        match event:
            case StepStarted():
                self._running[event.key] = (_title(event), self._clock())
            case StepEnded():
                title, _ = self._running.pop(event.key, (event.key, 0.0))
                self._last_line.pop(event.key, None)
                style = "red" if event.error else "dim" if event.cached else "green"
                text = printable(f"{_outcome(event):>9}  {title}")
                self._console.print(text, style=style, markup=False, highlight=False)
            case OutputLine():
                self._last_line[event.key] = event.text
            case BuildWarning():
                text = printable(f"  warning  {event.text}")
                self._console.print(text, style="yellow", markup=False, highlight=False)
            case Built() | BuildFailed():  # the command itself reports these, with what to do next
                pass

    def _table(self) -> Table:
        from rich.table import Table
        from rich.text import Text

        table = Table.grid(padding=(0, 2))
        table.add_column(justify="right", style="cyan", min_width=9)
        table.add_column(no_wrap=True, overflow="ellipsis")
        for key, (title, since) in self._running.items():
            table.add_row(f"{self._clock() - since:.0f} s", Text(printable(title)))
            if key in self._last_line:
                table.add_row("", Text(printable(self._last_line[key]), style="dim"))
        return table


def _title(event: StepStarted) -> str:
    place = f"[{event.number}/{event.total}] " if event.number and event.total else ""
    return place + event.title


def _outcome(event: StepEnded) -> str:
    if event.error:
        return "failed"
    return "cached" if event.cached else f"{event.duration_s:.1f} s"
