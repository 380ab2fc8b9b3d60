"""`vdbg-env render`."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import click

from vdbg_env.application.image.planning import default_tag
from vdbg_env.application.image.render import Format, Rendering, render
from vdbg_env.cli.composition.images import lay_out_context
from vdbg_env.cli.options.build import build_options, plan_here, read_request, show_notes
from vdbg_env.common import console
from vdbg_env.image.container.run_settings import RunSettings, Seccomp, parse_dumps, parse_gpu, warnings
from vdbg_env.image.profile.reference import parse_reference
from vdbg_env.image.profile.request import Dialect
from vdbg_env.report.build_result import Rendered
from vdbg_env.report.codec import document as doc


@click.command("render")
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.option(
    "--format", type=click.Choice(["dockerfile", "compose", "k8s", "apptainer"]), default="dockerfile",
    show_default=True, help="What to render.",
)  # fmt: skip
@click.option(
    "--dialect", type=click.Choice(["classic", "buildkit"]), default="classic", show_default=True,
    help="Instructions the builder takes; buildkit adds RUN --mount.",
)  # fmt: skip
@click.option(
    "--image", metavar="NAME", help="The image's name; by default that of `build`, with -unproven where built from DIR."
)
@click.option("--gpu", default="runtime", show_default=True, help="cdi, runtime or none; runtime:8 in a pod is eight.")
@click.option("--dumps", default="vdbg-dumps", show_default=True, help="Volume or folder that keeps dumps.")
@click.option(
    "--seccomp", type=click.Choice(["ptrace", "default", "unconfined"]), default="ptrace", show_default=True,
    help="System calls allowed; in a pod, ptrace needs a file on every node.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Report what was written as JSON.")
@build_options
def command(
    folder: Path,
    format: str,
    dialect: str,
    image: str | None,
    gpu: str,
    dumps: str,
    seccomp: str,
    as_json: bool,
    **flags: Any,
) -> int:
    """Write a debug image's Dockerfile and whole context, or manifests, into DIR.

    \b
    Example:
      vdbg-env render --profile sample ./sample-image
      vdbg-env render --format k8s --gpu none ./manifests
    """
    request, library = read_request(flags, dialect=cast(Dialect, dialect))
    decided = plan_here(request, library)
    # The name that `build` gives means that the image is proven; an image that another builder makes is not.
    own = default_tag(decided, request) + ("-unproven" if format in {"dockerfile", "compose"} else "")
    run = RunSettings(
        image=str(parse_reference(image or own, "--image")),
        gpu=parse_gpu(gpu),
        dumps=parse_dumps(dumps),
        seccomp=cast(Seccomp, seccomp),
        command=("sleep", "infinity"),
    )
    rendering = render(
        decided,
        run,
        folder,
        format=cast(Format, format),
        dialect=cast(Dialect, dialect),
        lay_out=lay_out_context(),
    )
    show_notes((*request.notes, *decided.notes), (*decided.warnings, *warnings(run)))
    _show(rendering, as_json=as_json)
    return 0


def _show(rendering: Rendering, *, as_json: bool) -> None:
    if as_json:
        print(doc.render(rendering, Rendered), end="")
        return
    print(f"{rendering.folder}: {len(rendering.files)} files, plan {rendering.digest}")
    console.note(f"next: {rendering.next_step}")
