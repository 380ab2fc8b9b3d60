"""`vdbg-env bundle`: everything that an air-gapped site needs to build, in one file."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import click

from vdbg_env.build.build import BuildSettings, dialect_of
from vdbg_env.build.builder import BuilderName
from vdbg_env.build.bundle import BundleResult, bundle_json, write_bundle
from vdbg_env.build.request import default_tag
from vdbg_env.cli.composition.images import bundle_files, image_builder, machine
from vdbg_env.cli.display.build_display import build_display
from vdbg_env.cli.options.build import Builders, build_options, plan_here, read_request, require_writable, show_notes
from vdbg_env.common import console
from vdbg_env.common.printable import json_text
from vdbg_env.image.plan import build_args, parallelism


@click.command("bundle")
@click.argument("file", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path))
@build_options
@click.option(
    "--engine", type=Builders(["auto", "docker", "buildx", "buildkit"]), default="auto",
    show_default=True, help="What fetches and builds; auto takes the best there is and says why.",
)  # fmt: skip
@click.option("--tag", "-t", metavar="NAME", help="Name of the image once it is proven; the site may give another.")
@click.option("--no-cache", is_flag=True, help="Take no step from an earlier build.")
@click.option("--json", "as_json", is_flag=True, help="Report what was written as JSON.")
@click.option("--verbose", "-v", is_flag=True, help="Show every line the steps print.")
@click.option("--quiet", "-q", is_flag=True, help="Show warnings and the result only.")
def command(file: Path, engine: str, tag: str | None, no_cache: bool, as_json: bool, **flags: Any) -> int:
    """Write one file that builds a debug image where there is no network.

    It holds an image with the base, apt packages, wheels, tools and external projects, and next to it the source and
    the steps that are left: they compile, and no container of theirs has a network. The site needs vdbg-env and a
    Docker Engine.

    \b
    Example:
      vdbg-env bundle --lineinfo --arch 9.0 vllm-debug.tar      # where there is a network
      vdbg-env build --bundle vllm-debug.tar                    # at the site
    """
    require_writable(file)
    builder = image_builder(cast(BuilderName, engine))
    described = builder.describe()
    request, library = read_request({**flags, "offline_compile": True}, dialect=dialect_of(described))
    plan = plan_here(request, library)
    jobs = parallelism(machine(), architectures=len(plan.arch), gib_per_job=plan.memory_per_job_gib)
    if not flags["quiet"]:
        show_notes((f"builder {described.name}: {described.why}", *request.notes, *plan.notes), ())
    show_notes((), plan.warnings)
    settings = BuildSettings(
        tags=(tag or default_tag(plan, request),),
        build_args=build_args(jobs, request.site),
        secrets={secret.id: Path(secret.path) for secret in request.secrets},
        no_cache=no_cache,
    )
    with build_display(quiet=flags["quiet"], verbose=flags["verbose"]) as display:
        files = bundle_files()
        result = write_bundle(plan, settings, file, builder=builder, files=files, tell=display.tell)
    _show(result, as_json=as_json)
    return 0


def _show(result: BundleResult, *, as_json: bool) -> None:
    if as_json:
        click.echo(json_text(bundle_json(result)), nl=False)
        return
    console.show(f"{result.path}: {result.size / 1e6:,.0f} MB, plan {result.plan_digest}\n")
    console.note(f"next: carry it to the site, and there: vdbg-env build --bundle {result.path.name}")
