"""`vdbg-env build`: plan, build, prove, and only then tag."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import click

from vdbg_env.build.build import BuildResult, BuildSettings, build_image, build_json, build_text, dialect_of
from vdbg_env.build.builder import BuilderDescription, BuilderName, BuildxOptions, ImageBuilder
from vdbg_env.build.bundle import build_from_bundle
from vdbg_env.build.request import default_tag
from vdbg_env.cli.composition.images import bundle_files, image_builder, machine, source_trees
from vdbg_env.cli.display.build_display import build_display
from vdbg_env.cli.image.onto import print_onto, require_onto
from vdbg_env.cli.options.build import (
    Builders,
    build_options,
    plan_here,
    read_request,
    require_writable,
    show_notes,
    write_result,
)
from vdbg_env.cli.options.given import Sectioned, given_except, given_options
from vdbg_env.cli.options.units import compiler_option
from vdbg_env.common.errors import BadInput
from vdbg_env.common.printable import json_text
from vdbg_env.image.dockerfile import dockerfile
from vdbg_env.image.plan import build_args, parallelism
from vdbg_env.image.profile import Site, parse_reference

_SECTIONS = {
    "Lines for an image that exists": {"onto", "kernels", "core", "toolkit", "work", "accept_other_headers"},
    "Network, indexes and secrets": {
        "network", "offline_compile", "secrets", "ca_bundle", "keep_ca", "pip_index_url", "pip_extra_index_url",
        "apt_mirror",
    },
    "With buildx": {"cache_from", "cache_to", "sbom", "provenance"},
    "The result": {"dry_run", "tags", "push", "output", "metadata_file", "as_json", "verbose", "quiet"},
}  # fmt: skip
_FREE_WITH_BUNDLE = {
    "bundle", "jobs", "engine", "tags", "push", "output", "metadata_file", "no_cache", "as_json", "verbose", "quiet",
    "sbom", "provenance",
}  # fmt: skip


@click.command("build", cls=Sectioned, sections=_SECTIONS)
@build_options
@click.option(
    "--engine",
    type=Builders(["auto", "docker", "buildx", "buildkit", "host"]),
    default="auto",
    show_default=True,
    help="What builds; auto takes the best of Docker and says why, host a folder of this machine.",
)
@click.option("--onto", metavar="IMAGE", help="Add line tables to the kernels of this image, and change nothing else.")
@click.option("--kernel", "kernels", multiple=True, metavar="NAME", help="With --onto: this kernel.")
@click.option("--core", type=click.Path(exists=True), help="With --onto: the kernel and GPU of a GPU core dump.")
@compiler_option("With --onto: an")
@click.option(
    "--work",
    type=click.Path(file_okay=False, path_type=Path),
    help="With --onto: the folder that sources, compiler and results are kept in.",
)
@click.option(
    "--accept-other-headers",
    is_flag=True,
    help="With --onto: take lines of other headers (CUTLASS) than the image's vLLM was built with.",
)
@click.option("--dry-run", is_flag=True, help="Print the Dockerfile and stop.")
@click.option("--tag", "-t", "tags", multiple=True, metavar="NAME", help="Name of the proven image; may be repeated.")
@click.option("--push", is_flag=True, help="Push every tag once it is proven.")
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), help="Also write a tar for `docker load`.")
@click.option(
    "--metadata-file", type=click.Path(dir_okay=False, path_type=Path), help="Write digest and proof as JSON."
)
@click.option("--bundle", type=click.Path(path_type=Path), help="Build what `vdbg-env bundle` put into this file.")
@click.option("--cache-from", multiple=True, metavar="WHERE", help="Take layers from there; may be repeated.")
@click.option("--cache-to", multiple=True, metavar="WHERE", help="Keep layers there, as in type=inline.")
@click.option("--sbom", metavar="VALUE", help="Attach a list of what is in the image, as in true.")
@click.option("--provenance", metavar="VALUE", help="Attach how it was built, as in true or mode=max.")
@click.option("--no-cache", is_flag=True, help="Take no step from an earlier build.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@click.option("--verbose", "-v", is_flag=True, help="Show every line the steps print.")
@click.option("--quiet", "-q", is_flag=True, help="Show warnings and the result only.")
def command(engine: str, dry_run: bool, **flags: Any) -> int:
    """Build a debug image in which every cubin is proven to carry line info.

    What is not proven is not tagged. Exit status: 0 proven and tagged, 1 the build failed, 2 bad input, 3 built but
    some cubins lack line info, 4 with --onto: lines would be of other headers than the image's.

    \b
    Examples:
      vdbg-env build --lineinfo --profile sample
      vdbg-env build --lineinfo --arch 9.0 --tag debug/vllm:0.33.0-lineinfo
      vdbg-env build --lineinfo --source ./vllm --target _moe_C_stable_libtorch
      vdbg-env build --onto vllm/vllm-openai:v0.33.0 --core core.nvcudmp --tag vllm:0.33.0-lines
    """
    if flags["onto"]:
        return print_onto(flags)
    require_onto(flags)
    if flags["bundle"]:
        _refuse_decided()
    if dry_run:
        request, library = read_request(flags)
        plan = plan_here(request, library)
        show_notes((*request.notes, *plan.notes), plan.warnings)
        click.echo(dockerfile(plan, request.dialect), nl=False)
        return 0
    result = _build(engine, flags)
    if flags["metadata_file"]:
        write_result(flags["metadata_file"], json_text(build_json(result)))
    if flags["as_json"]:
        click.echo(json_text(build_json(result)), nl=False)
    else:
        click.echo(build_text(result), nl=False)
    return 0


def _build(engine_name: str, flags: dict[str, Any]) -> BuildResult:
    tags = tuple(str(parse_reference(tag, "--tag")) for tag in flags["tags"])
    if flags["push"] and not tags:
        raise BadInput("--push needs the name to push to", next_step="add --tag REGISTRY/NAME:TAG")
    for path in (flags["metadata_file"], flags["output"]):
        require_writable(path)
    if engine_name == "host":
        _refuse_of_images()
    builder = image_builder(cast(BuilderName, engine_name))
    described = builder.describe()
    buildx = _buildx_options(flags, described)
    if flags["bundle"]:
        return _build_bundle(flags, tags, builder, buildx)
    request, library = read_request(flags, dialect=dialect_of(described))
    if described.name == "host":  # a folder has no entry point, and our new release must not compile everything again
        request = replace(request, guard=None)
    plan = plan_here(request, library)
    jobs = parallelism(
        machine(),
        architectures=len(plan.arch),
        gib_per_job=plan.memory_per_job_gib,
        requested=request.jobs,
    )
    if not flags["quiet"]:
        show_notes(
            (f"builder {described.name}: {described.why}", f"MAX_JOBS {jobs.sum}", *request.notes, *plan.notes), ()
        )
    show_notes((), (*plan.warnings, *((jobs.warning,) if jobs.warning else ())))
    settings = BuildSettings(
        tags=tags or (() if described.name == "host" else (default_tag(plan, request),)),
        build_args=build_args(jobs, request.site),
        secrets={secret.id: Path(secret.path) for secret in request.secrets},
        jobs=jobs.max_jobs,
        offline_compile=request.offline_compile,
        no_cache=flags["no_cache"],
        push=flags["push"],
        output=flags["output"],
        threads=os.cpu_count() or 1,
        buildx=buildx,
    )
    with build_display(quiet=flags["quiet"], verbose=flags["verbose"]) as display:
        return build_image(plan, settings, builder=builder, tell=display.tell, clock=time.monotonic)


def _buildx_options(flags: dict[str, Any], builder: BuilderDescription) -> BuildxOptions:
    options = BuildxOptions(
        cache_from=flags["cache_from"], cache_to=flags["cache_to"], sbom=flags["sbom"], provenance=flags["provenance"]
    )
    words = tuple(options.words())
    if words and builder.name != "buildx":
        raise BadInput(
            f"{words[0].partition('=')[0]} is an option of buildx, and {builder.name} builds here",
            cause=builder.why,
            next_step="install docker-buildx (vdbg-env doctor says how), or leave it out",
        )
    return options


def _build_bundle(
    flags: dict[str, Any], tags: tuple[str, ...], builder: ImageBuilder, buildx: BuildxOptions
) -> BuildResult:
    """Build what is in a bundle: everything but the number of compilers, names and outputs was decided with it."""
    with bundle_files().open(flags["bundle"]) as bundle:
        plan = bundle.plan(source_trees().digest)
        jobs = parallelism(
            machine(), architectures=len(plan.arch), gib_per_job=plan.memory_per_job_gib, requested=flags["jobs"]
        )
        settings = BuildSettings(
            tags=tags, build_args=build_args(jobs, Site()), jobs=jobs.max_jobs, no_cache=flags["no_cache"],
            push=flags["push"], output=flags["output"], threads=os.cpu_count() or 1, buildx=buildx,
        )  # fmt: skip
        with build_display(quiet=flags["quiet"], verbose=flags["verbose"]) as display:
            return build_from_bundle(
                flags["bundle"], bundle.manifest, plan, settings, builder=builder, tell=display.tell,
                clock=time.monotonic,
            )  # fmt: skip


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
