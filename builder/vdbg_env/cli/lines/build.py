"""`vdbg-env lines build`: compile what crashed again, with line info, and show that it is the same code."""

from __future__ import annotations

import os
from pathlib import Path

import click

from vdbg_env.build.request import architectures
from vdbg_env.build.unit_sources import LocalUnitBuilds
from vdbg_env.build.units import installed_release
from vdbg_env.cli.composition.lines import default_pack, write_file
from vdbg_env.cli.display.build_display import build_display
from vdbg_env.cli.options.units import compiler_option, local_trees
from vdbg_env.common.errors import BadInput
from vdbg_env.crash.files import CoreFiles
from vdbg_env.engine.targets import Targets
from vdbg_env.image.plan import MOST_JOBS
from vdbg_env.lines.build import (
    LinesBuilt,
    LinesRequest,
    build_lines,
    lines_for_core,
    lines_of_other_headers,
    pack_built,
)
from vdbg_env.lines.packs import Packed
from vdbg_env.lines.stock import Wanted, wanted_by_core
from vdbg_env.report.codec import document as doc
from vdbg_env.report.lineinfo.lines_built import LinesDocument, Written, lines_text


@click.command("build")
@click.argument("requirement", metavar="PROJECT==VERSION|WHEEL")
@click.option("--kernel", "kernels", multiple=True, metavar="NAME", help="A kernel, mangled or as the source has it.")
@click.option("--core", type=click.Path(exists=True), help="The kernels and the GPU that a GPU core dump names.")
@click.option("--extension", "extensions", multiple=True, metavar="NAME", help="Only this library of the wheel.")
@click.option(
    "--arch",
    "archs",
    multiple=True,
    metavar="9.0",
    help="Only what this GPU runs; may be repeated.",
)
@click.option("--all", "everything", is_flag=True, help="Every library that the sources build: hours on two cores.")
@click.option("--external", "externals", multiple=True, metavar="VARIABLE=DIR",
              help="A local tree for CMake's variable, as in VLLM_CUTLASS_SRC_DIR=~/cutlass.")  # fmt: skip
@click.option(
    "--compiler-release", metavar="13.0.88", help="The compiler's release, where the wheel's cubins do not name it."
)
@compiler_option()
@click.option("--jobs", "-j", type=click.IntRange(1, MOST_JOBS), help="Compilers at a time; else the cores.")
@click.option(
    "--work",
    type=click.Path(file_okay=False, path_type=Path),
    help="The folder that sources, compiler and results are kept in.",
)
@click.option("--output", "-o", type=click.Path(dir_okay=False, path_type=Path),
              help="The pack to write; default: one in the folder that `core` looks through.")  # fmt: skip
@click.option("--cubins", type=click.Path(file_okay=False, path_type=Path), help="Also write the cubins there.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON (schema vdbg-env/lines-build/v1).")
@click.option("--verbose", "-v", is_flag=True, help="Show every line the steps print.")
@click.option("--quiet", "-q", is_flag=True, help="Show warnings and the result only.")
def command(
    requirement: str,
    kernels: tuple[str, ...],
    core: str | None,
    extensions: tuple[str, ...],
    archs: tuple[str, ...],
    everything: bool,
    externals: tuple[str, ...],
    compiler_release: str | None,
    toolkit: Path | None,
    jobs: int | None,
    work: Path | None,
    output: Path | None,
    cubins: Path | None,
    as_json: bool,
    verbose: bool,
    quiet: bool,
) -> int:
    """Make line tables for a released wheel, from the wheel alone: no GPU, no debug build, no reproduction.

    The wheel says which compiler made it. Its sources, that compiler and torch's headers are fetched from the package
    index and kept; one kernel is then about a minute's work. Each function is compared with the stock one.

    Exit status: 0 all that was asked for is identical code, and its lines are the wheel's; 4 some is not, or could not
    be built, or has lines of other headers (CUTLASS) than the wheel was built with, which are marked wherever they are
    shown; 2 the wheel has no such kernel.

    \b
    Example:
      vdbg-env lines build vllm==0.33.0 --core core.nvcudmp
      vdbg-env lines build vllm==0.33.0 --kernel moe_align_block_size_kernel --arch 9.0
      vdbg-env lines build vllm==0.33.0 --extension _moe_C_stable_libtorch --arch 9.0
    """
    wanted = _wanted(kernels, core, extensions, archs, everything)
    request = LinesRequest(
        requirement=requirement,
        wanted=wanted,
        compiler=compiler_release or (installed_release(toolkit) if toolkit else None),
        externals=local_trees(externals, "--external"),
        jobs=jobs or os.cpu_count() or 1,
    )
    with build_display(quiet=quiet, verbose=verbose) as display:
        builds = LocalUnitBuilds(display.tell, work, toolkit)
        result = build_lines(request, builds=builds, binaries=Targets())
    if cubins:
        _write_cubins(result, cubins)
    packed = pack_built(result)
    path = _write_pack(result, packed, output) if packed else None
    in_core = lines_for_core(core, packed.data if packed else b"", CoreFiles()) if core else None
    headers = lines_of_other_headers(result, packed.data) if packed else ()
    written = Written(path=path, core=in_core, headers=headers)
    click.echo(doc.render(result, LinesDocument, written) if as_json else lines_text(result, written), nl=False)
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


def _wanted(
    kernels: tuple[str, ...], core: str | None, extensions: tuple[str, ...], archs: tuple[str, ...], everything: bool
) -> Wanted:
    if not (kernels or core or extensions or everything):
        raise BadInput(
            "nothing says what to build",
            next_step="--core FILE or --kernel NAME; --extension NAME for a library; --all for all of them",
        )
    by_core = wanted_by_core(core, CoreFiles()) if core else Wanted()
    return Wanted(
        kernels=(*kernels, *by_core.kernels),
        extensions=extensions,
        archs=architectures(archs) or by_core.archs,
        codes=by_core.codes,
    )


def _write_pack(result: LinesBuilt, packed: Packed, output: Path | None) -> Path:
    name = f"{result.release.project}-{result.release.version}-{packed.digest[:12]}.lines"
    path = output or default_pack(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_file(path, packed.data)
    return path


def _write_cubins(result: LinesBuilt, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for unit in result.built:
        if unit.compiled.cubin is not None:
            name = f"{Path(unit.source).stem}.{unit.choice.target}.cubin"
            (folder / name).write_bytes(unit.compiled.cubin)
