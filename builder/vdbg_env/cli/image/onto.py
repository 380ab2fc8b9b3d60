"""`vdbg-env build --onto`: line tables for the kernels of an image that exists."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import click

from vdbg_env.application.host.gpu import first_gpu
from vdbg_env.application.lines.build import LinesRequest
from vdbg_env.application.lines.choose import Wanted, wanted_by_core
from vdbg_env.build.onto import OntoRequest, OntoResult, build_onto, onto_json, onto_text
from vdbg_env.cli.composition.images import image_swaps, installed_compiler, own_package, programs, unit_builds
from vdbg_env.cli.display.build_display import build_display
from vdbg_env.cli.options.build import architectures, require_writable, write_result
from vdbg_env.cli.options.given import given_except
from vdbg_env.cli.options.units import local_trees
from vdbg_env.common.errors import BadInput
from vdbg_env.common.printable import json_text
from vdbg_env.crash.files import CoreFiles
from vdbg_env.image.profile import parse_reference
from vdbg_env.image.units import parse_arch

_TAKEN = {
    "onto", "kernels", "core", "work", "target", "archs", "deps", "jobs", "tags", "metadata_file", "as_json", "verbose",
    "quiet", "debug", "guard", "toolkit", "accept_other_headers",
}  # fmt: skip


def print_onto(flags: dict[str, Any]) -> int:
    """Run `build --onto`, print its result and return the exit status."""
    metadata: Path | None = flags["metadata_file"]
    require_writable(metadata)
    result = onto(flags)
    if metadata:
        write_result(metadata, json_text(onto_json(result)))
    click.echo(json_text(onto_json(result)) if flags["as_json"] else onto_text(result), nl=False)
    return 0


def require_onto(flags: dict[str, Any]) -> None:
    """Refuse, without --onto, the flags that belong to it."""
    ours = (("kernel", "kernels"), ("core", "core"), ("compiler", "toolkit"), ("work", "work"),
            ("accept-other-headers", "accept_other_headers"))  # fmt: skip
    given = [f"--{name}" for name, key in ours if flags[key]]
    if given:
        raise BadInput(
            f"{', '.join(given)} has no meaning without --onto",
            next_step="--onto IMAGE adds line tables to an image; --target EXT builds one extension from source",
        )


def onto(flags: dict[str, Any]) -> OntoResult:
    """Build what the flags of `build --onto` ask for; raises BadInput for a flag that has no meaning with it."""
    _require_only_ours(click.get_current_context())
    request = OntoRequest(
        image=flags["onto"],
        project="vllm",
        lines=LinesRequest(
            requirement=flags["onto"],
            wanted=_wanted(flags),
            compiler=installed_compiler(flags["toolkit"]) if flags["toolkit"] else None,
            externals=local_trees(flags["deps"], "--dep"),
            jobs=flags["jobs"] or os.cpu_count() or 1,
        ),
        tags=tuple(str(parse_reference(tag, "--tag")) for tag in flags["tags"]) or ("vdbg/onto:lineinfo",),
        guard=own_package() if flags["guard"] else None,
        accept_other_headers=flags["accept_other_headers"],
    )
    with build_display(quiet=flags["quiet"], verbose=flags["verbose"]) as display:
        builds = unit_builds(display.tell, flags["work"], flags["toolkit"])
        return build_onto(request, images=image_swaps(), builds=builds, clock=time.monotonic)


def _require_only_ours(context: click.Context) -> None:
    wrong = [max(option.opts, key=len) for option in given_except(context, _TAKEN)]
    if wrong:
        raise BadInput(
            f"{', '.join(wrong)} has no meaning with --onto",
            cause="the image and its vLLM are those of the image named; only kernels are compiled",
            next_step="vdbg-env build --onto IMAGE --core FILE --tag NAME",
        )


def _wanted(flags: dict[str, Any]) -> Wanted:
    if flags["debug"] != "lineinfo":
        raise BadInput(
            "--device-debug changes the code, and --onto keeps it", next_step="leave out --device-debug, or --onto"
        )
    if not (flags["kernels"] or flags["core"] or flags["target"]):
        raise BadInput(
            "nothing says which kernels of the image get line tables",
            next_step="--core FILE, --kernel NAME, or --target EXTENSION for all of a library",
        )
    by_core = wanted_by_core(flags["core"], CoreFiles()) if flags["core"] else Wanted()
    archs = flags["archs"] or by_core.archs or _own_gpu()
    if not archs:
        raise BadInput(
            "this machine has no GPU, so the architecture is not known", next_step="--arch 9.0; or --core FILE"
        )
    each = architectures(archs)
    for arch in each:
        parse_arch(arch)  # before the image is read, which takes minutes
    return Wanted(
        kernels=(*flags["kernels"], *by_core.kernels),
        extensions=(flags["target"],) if flags["target"] else (),
        archs=each,
        codes=by_core.codes,
    )


def _own_gpu() -> tuple[str, ...]:
    gpu = first_gpu(programs())
    return (gpu.arch,) if gpu else ()
