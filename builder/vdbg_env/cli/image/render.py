"""`vdbg-env render`."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import click

from vdbg_env.build.render import Format, Rendering, render, render_json, render_patch
from vdbg_env.build.request import default_tag
from vdbg_env.cli.composition.images import lay_out_context
from vdbg_env.cli.composition.runs import runbook_library, runbook_names
from vdbg_env.cli.options.build import build_options, plan_here, read_request, show_notes
from vdbg_env.cli.options.given import named_values
from vdbg_env.common import console
from vdbg_env.common.errors import BadInput
from vdbg_env.common.printable import json_text
from vdbg_env.image.profile import Dialect, parse_reference
from vdbg_env.image.settings import RunSettings, Seccomp, parse_dumps, parse_gpu, warnings
from vdbg_env.runbook.model import Manual


@click.command("render")
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.option(
    "--format", type=click.Choice(["dockerfile", "compose", "k8s", "apptainer", "slurm"]), default="dockerfile",
    show_default=True, help="What to render.",
)  # fmt: skip
@click.option(
    "--for", "--for-lws", "existing", metavar="FILE", type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="With --format k8s: a patch that arms the LeaderWorkerSet, JobSet, Deployment, StatefulSet or Job in FILE.",
)  # fmt: skip
@click.option("--runbook", metavar="NAME", help="With --for: one run of this runbook in the pod, instead of guard.")
@click.option(
    "-i", "--input", "inputs", multiple=True, callback=named_values, metavar="NAME=VALUE",
    help="With --runbook: an input of it; repeatable.",
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
    existing: Path | None,
    runbook: str | None,
    inputs: dict[str, str],
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
      vdbg-env render --format k8s --for deployment.yaml ./armed
      vdbg-env render --format k8s --for lws.yaml --runbook illegal-memory-access -i request=synthetic ./debug
      vdbg-env render --format slurm ./job
    """
    if existing:
        if format != "k8s":
            raise click.UsageError("--for renders a patch: add --format k8s")
        if inputs and not runbook:
            raise click.UsageError("--input is of a runbook: add --runbook NAME")
        return _patch(existing, folder, image, dumps, runbook, inputs, as_json=as_json)
    if runbook or inputs:
        raise click.UsageError("--runbook runs in a pod that you have: add --for FILE")
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
        pulled=run.image if image else None,
    )
    if format in {"k8s", "slurm"}:  # of an image that is there: nothing is built from them
        show_notes((), warnings(run))
    else:
        show_notes((*request.notes, *decided.notes), (*decided.warnings, *warnings(run)))
    _show(rendering, as_json=as_json)
    return 0


def _patch(
    existing: Path,
    folder: Path,
    image: str | None,
    dumps: str,
    runbook: str | None,
    inputs: dict[str, str],
    *,
    as_json: bool,
) -> int:
    without_requests: str | None = None
    if runbook:
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
        if "request" in known.inputs and not inputs.get("request"):
            asked = (step.question.unattended for step in known.steps if isinstance(step, Manual))
            without_requests = next(filter(None, asked), None)
    rendering, notes = render_patch(
        existing.read_text(errors="replace"),
        str(existing),
        folder,
        image=str(parse_reference(image, "--image")) if image else None,
        dumps=parse_dumps(dumps),
        grace_s=RunSettings.stop_grace_s,
        lay_out=lay_out_context(),
        runbook=runbook or "",
        inputs=inputs,
        without_requests=without_requests,
    )
    show_notes(notes, ())
    _show(rendering, as_json=as_json)
    return 0


def _show(rendering: Rendering, *, as_json: bool) -> None:
    if as_json:
        print(json_text(render_json(rendering)), end="")
        return
    what = f", plan {rendering.digest}" if rendering.digest else ""
    console.show(f"{rendering.folder}: {len(rendering.files)} file{'s' * (len(rendering.files) != 1)}{what}\n")
    console.note(f"next: {rendering.next_step}")
