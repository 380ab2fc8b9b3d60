"""The commands of this plug-in: `lines build`, `lines push`, `lines pull`, and what does `build --onto`."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click

from vdbg_env.build.build import Tell, WhatToBuild, architectures, first_gpu
from vdbg_env.cli.build import OntoFlags, build_display
from vdbg_env.common import console
from vdbg_env.common.console import json_text
from vdbg_env.common.errors import BadInput
from vdbg_env.common.flags import Sectioned, flag, takes
from vdbg_env.common.programs import Programs
from vdbg_env.crash.files import CoreFiles
from vdbg_env.crash.line_packs import default_folder, open_store, write_whole
from vdbg_env.engine.client import connect
from vdbg_env.engine.targets import Targets
from vdbg_env.engine.trees import own_package
from vdbg_env.image.plan import MOST_JOBS
from vdbg_env.lines.packs import Packed
from vdbg_env_lines.build import (
    LinesBuilt,
    LinesRequest,
    build_lines,
    lines_for_core,
    lines_of_other_headers,
    pack_built,
)
from vdbg_env_lines.compilers import installed_release
from vdbg_env_lines.onto import OntoRequest, build_onto, onto_json, onto_text
from vdbg_env_lines.remote import open_target
from vdbg_env_lines.result import Written, lines_json, lines_text
from vdbg_env_lines.sources import FETCHED, LocalUnitBuilds
from vdbg_env_lines.stock import Wanted, wanted_by_core
from vdbg_env_lines.stores import Shelf, carry
from vdbg_env_lines.swap import DockerSwaps
from vdbg_env_lines.units import parse_arch

_VARIABLES: Final = {"cutlass": "VLLM_CUTLASS_SRC_DIR", "flash-attn": "VLLM_FLASH_ATTN_SRC_DIR"}


@dataclass(frozen=True, kw_only=True)
class LinesBuildFlags:
    """The flags of `lines build`."""

    kernels: tuple[str, ...] = flag(
        "--kernel",
        default=(),
        metavar="NAME",
        help="Only this kernel, mangled or as written in the source; repeatable.",
    )
    core: str | None = flag(path={"exists": True}, help="Only the kernels and the GPU of this GPU core dump.")
    extensions: tuple[str, ...] = flag(
        "--extension", default=(), metavar="NAME", help="Only this library of the wheel; repeatable."
    )
    archs: tuple[str, ...] = flag("--arch", default=(), metavar="9.0", help="Only the code for this GPU; repeatable.")
    everything: bool = flag("--all", default=False, help="Every library: takes hours on two cores.")
    externals: tuple[str, ...] = flag(
        "--external", default=(), metavar="VARIABLE=DIR",
        help="Source tree for a CMake variable, such as VLLM_CUTLASS_SRC_DIR=~/cutlass; repeatable.",
    )  # fmt: skip
    source: Path | None = flag(
        path={"exists": True, "file_okay": False}, metavar="DIR",
        help="Use this source tree, the folder with its CMakeLists.txt, instead of the source distribution.",
    )  # fmt: skip
    compiler_release: str | None = flag(
        metavar="13.0.88", help="The compiler release, if the wheel's cubins do not record it."
    )
    toolkit: Path | None = flag(
        "--compiler", path={"exists": True, "file_okay": False}, metavar="DIR",
        help="Use this installed CUDA toolkit, as vLLM for CUDA 12 needs.",
    )  # fmt: skip
    jobs: int | None = flag("--jobs", "-j", between=(1, MOST_JOBS), help="Parallel compilers. [default: one per core]")
    work: Path | None = flag(path={"file_okay": False}, help="Folder for sources, compiler and results.")
    output: Path | None = flag(
        "--output", "-o", path={"dir_okay": False},
        help="The pack to write. [default: in the folder that `core` searches]",
    )  # fmt: skip
    cubins: Path | None = flag(path={"file_okay": False}, help="Also write the cubins to this folder.")
    as_json: bool = flag("--json", default=False, help="Print JSON (schema vdbg-env/lines-build/v1).")
    verbose: bool = flag("--verbose", "-v", default=False, help="Show all output of the steps.")
    quiet: bool = flag("--quiet", "-q", default=False, help="Show warnings and the result only.")


@click.command(
    "build",
    cls=Sectioned,
    everyday={
        "kernels",
        "core",
        "extensions",
        "archs",
        "everything",
        "externals",
        "source",
        "toolkit",
        "output",
        "as_json",
    },
)  # fmt: skip
@click.argument("requirement", metavar="PROJECT==VERSION|WHEEL")
@takes(flags=LinesBuildFlags)
def build_command(requirement: str, flags: LinesBuildFlags) -> int:
    """Rebuild the line tables of a released wheel; needs no GPU and no second crash.

    The sources, the compiler that made the wheel and torch's headers are fetched from the package index and cached.
    After that a kernel takes about a minute. Each function is compared with the stock one.

    Exit status: 0 all requested code is identical and its lines are exact; 4 some is not, could not be built, or has
    lines of other headers (CUTLASS) than the wheel's, which are marked wherever shown; 2 the wheel has no such kernel.

    \b
    Example:
      vdbg-env lines build vllm==0.33.0 --core core.nvcudmp
      vdbg-env lines build vllm==0.33.0 --kernel moe_align_block_size_kernel
      vdbg-env lines build vllm==0.33.0 --extension _C_stable_libtorch --arch 9.0
      vdbg-env lines build mine.whl --source ~/mine --core core.nvcudmp
    """
    request = LinesRequest(
        requirement=requirement,
        wanted=_wanted_of_wheel(flags),
        compiler=flags.compiler_release or (installed_release(flags.toolkit) if flags.toolkit else None),
        externals=_local_trees(flags.externals, "--external"),
        jobs=flags.jobs or os.cpu_count() or 1,
    )
    with build_display(quiet=flags.quiet, verbose=flags.verbose) as display:
        builds = LocalUnitBuilds(display.tell, flags.work, flags.toolkit, flags.source)
        result = build_lines(request, builds=builds, binaries=Targets())
    if flags.cubins:
        _write_cubins(result, flags.cubins)
    packed = pack_built(result)
    path = _write_pack(result, packed, flags.output) if packed else None
    in_core = lines_for_core(flags.core, packed.data if packed else b"", CoreFiles()) if flags.core else None
    headers = lines_of_other_headers(result, packed.data) if packed else ()
    written = Written(path=path, core=in_core, headers=headers)
    click.echo(json_text(lines_json(result, written)) if flags.as_json else lines_text(result, written), nl=False)
    return exit_status(result, written)


def exit_status(result: LinesBuilt, written: Written | None = None) -> int:
    """Return 0 when every kernel asked for, or else every function, has the stock wheel's instructions.

    No line may be of other headers than the wheel's, and with a core each of its places must have one in the new pack.
    """
    core = written.core if written else None
    if written and (written.headers or (core and (core.without or not core.places))):
        return 4
    for unit in result.built:
        found = unit.comparison
        if found is None or not (
            set(unit.choice.kernels) <= set(found.identical) if unit.choice.kernels else found.complete
        ):
            return 4
    return 4 if result.unplaced else 0


def _wanted_of_wheel(flags: LinesBuildFlags) -> Wanted:
    if not (flags.kernels or flags.core or flags.extensions or flags.everything):
        raise BadInput(
            "nothing says what to build",
            next_step="--core FILE or --kernel NAME; --extension NAME for a library; --all for all of them",
        )
    by_core = wanted_by_core(flags.core, CoreFiles()) if flags.core else Wanted()
    return Wanted(
        kernels=(*flags.kernels, *by_core.kernels),
        extensions=flags.extensions,
        archs=_known(flags.archs) or by_core.archs,
        codes=by_core.codes,
    )


def _write_pack(result: LinesBuilt, packed: Packed, output: Path | None) -> Path:
    name = f"{result.release.project}-{result.release.version}-{packed.digest[:12]}.lines"
    path = output or default_folder() / name
    write_whole(path, packed.data)
    return path


def _write_cubins(result: LinesBuilt, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for unit in result.built:
        if unit.compiled.cubin is not None:
            name = f"{Path(unit.source).stem}.{unit.choice.target}.cubin"
            (folder / name).write_bytes(unit.compiled.cubin)


@click.command("push")
@click.argument("packs", nargs=-1, required=True, metavar="PACK...")
@click.argument("target", metavar="FOLDER|oci://HOST/NAME:TAG")
def push_command(packs: tuple[str, ...], target: str) -> int:
    """Publish packs in a folder that a web server serves, or in a registry.

    Every pack is checked for damage first. In a folder it is named by its SHA-256, and an index lets clients fetch only
    the packs they need. A registry is accessed with the credentials of `docker login`.

    \b
    Example:
      vdbg-env lines push vllm.lines /srv/www/lines
      vdbg-env lines push vllm.lines oci://HOST/lines:vllm-0.33.0
    """
    for place in carry([open_store(name) for name in packs], open_target(target)):
        console.show(f"{place}\n")
    return 0


@click.command("pull")
@click.argument("store", metavar="ADDRESS|oci://HOST/NAME[:TAG][@DIGEST]")
@click.option(
    "--into", type=click.Path(file_okay=False, path_type=Path), metavar="FOLDER",
    help="The folder to put them in. [default: the one that `core` searches]",
)  # fmt: skip
def pull_command(store: str, into: Path | None) -> int:
    """Download all packs from a URL or a registry.

    \b
    Example:
      vdbg-env lines pull oci://registry.example/lines:vllm-0.33.0
    """
    for path in carry([open_store(store)], Shelf(into or default_folder())):
        console.show(f"{path}\n")
    return 0


def build_onto_image(
    what: WhatToBuild, flags: OntoFlags, tags: tuple[str, ...], tell: Tell
) -> tuple[dict[str, Any], str]:
    """Do `build --onto`: add line tables to the kernels of an image, and return the result as JSON and as text."""
    assert flags.onto
    request = OntoRequest(
        image=flags.onto,
        project="vllm",
        lines=LinesRequest(
            requirement=flags.onto,
            wanted=_wanted_of_image(what, flags),
            compiler=installed_release(flags.toolkit) if flags.toolkit else None,
            externals=_local_trees(what.deps, "--dep"),
            jobs=what.jobs or os.cpu_count() or 1,
        ),
        tags=tags or ("vdbg/onto:lineinfo",),
        guard=own_package() if what.guard else None,
        accept_other_headers=flags.accept_other_headers,
    )
    builds = LocalUnitBuilds(tell, flags.work, flags.toolkit)
    result = build_onto(request, images=DockerSwaps(connect()), builds=builds, clock=time.monotonic)
    return onto_json(result), onto_text(result)


def _wanted_of_image(what: WhatToBuild, flags: OntoFlags) -> Wanted:
    """Return the kernels and the architectures that get line tables."""
    if what.debug != "lineinfo":
        raise BadInput(
            "--device-debug changes the code, and --onto keeps it", next_step="leave out --device-debug, or --onto"
        )
    if not (flags.kernels or flags.core or what.target):
        raise BadInput(
            "nothing says which kernels of the image get line tables",
            next_step="--core FILE, --kernel NAME, or --target EXTENSION for all of a library",
        )
    by_core = wanted_by_core(flags.core, CoreFiles()) if flags.core else Wanted()
    archs = what.archs or by_core.archs
    if not archs:
        gpu = first_gpu(Programs())
        archs = (gpu.arch,) if gpu else ()
    if not archs:
        raise BadInput(
            "this machine has no GPU, so the architecture is not known", next_step="--arch 9.0; or --core FILE"
        )
    return Wanted(
        kernels=(*flags.kernels, *by_core.kernels),
        extensions=(what.target,) if what.target else (),
        archs=_known(archs),
        codes=by_core.codes,
    )


def _known(texts: Iterable[str]) -> tuple[str, ...]:
    """Return architectures; raises BadInput for one that is none before anything is fetched, which takes minutes."""
    archs = architectures(texts)
    for arch in archs:
        parse_arch(arch)
    return archs


def _local_trees(texts: Iterable[str], flag: str) -> dict[str, str]:
    """Return the trees of other projects by CMake's variable; raises BadInput for one that is not VARIABLE=DIR."""
    return dict(_local_tree(text, flag) for text in texts)


def _local_tree(text: str, flag: str) -> tuple[str, str]:
    name, equals, folder = text.partition("=")
    variable = _VARIABLES.get(name, name)
    path = Path(folder).expanduser()
    takes_tree = variable.endswith("_SRC_DIR") or variable.startswith(FETCHED)
    if not equals or not takes_tree or not path.is_dir():
        raise BadInput(
            f"{flag} {text}: not VARIABLE=DIR of a folder that exists",
            next_step=f"{flag} VLLM_CUTLASS_SRC_DIR=~/cutlass, the variable that vLLM's CMake reads",
        )
    return variable, str(path.resolve())
