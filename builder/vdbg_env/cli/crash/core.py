"""`vdbg-env core`: what a GPU core dump says."""

from __future__ import annotations

import click

from vdbg_env.application.analysis.read_cores import CoreRequest, CoresRead, read_cores
from vdbg_env.cli.composition.lines import packed_lines
from vdbg_env.cli.options.source import Mapping, lines_option, source_options
from vdbg_env.common import console
from vdbg_env.crash.files import CoreFiles, SourceFiles
from vdbg_env.report.core import as_json as gpu_core_json
from vdbg_env.report.core import text as gpu_core


@click.command("core")
@click.argument("targets", nargs=-1, required=True, metavar="FILE|FOLDER...")
@click.option("--json", "as_json", is_flag=True, help="Print JSON (schema vdbg-env/core/v1).")
@click.option("--registers", is_flag=True, help="Show the registers of each fault's first thread.")
@click.option("--parameters", is_flag=True, help="Show the parameters and constant banks of each launch.")
@click.option("--all", "everything", is_flag=True, help="Show every fault and every place where warps stand.")
@lines_option
@source_options
def command(
    targets: tuple[str, ...],
    as_json: bool,
    registers: bool,
    parameters: bool,
    everything: bool,
    line_packs: tuple[str, ...],
    source_roots: tuple[str, ...],
    path_maps: tuple[Mapping, ...],
) -> int:
    """Read GPU core dumps: exception, kernel, thread, source line, inline chain, and where all other warps stand.

    No GPU, driver, debugger or CUDA toolkit is needed. Of several dumps, one of each rank, a line says what they come
    to; those with an exception are first, in order of time, and of the others --all shows more than a line.

    Exit status: 0 no exception; 3 a GPU exception was found; 4 no exception, but a dump is truncated or other files
    could not be read; 2 nothing could be read.

    \b
    Example:
      vdbg-env core core_1717171717_node7_4242.nvcudmp
      vdbg-env core --source-root ~/src/vllm /dumps
      vdbg-env core --lines vllm-0.33.0.lines core_1717171717_node7_4242.nvcudmp
      vdbg-env core --json rank*.nvcudmp.gz | jq '.cores[0].faults[0].chain'
    """
    read = read_cores(
        CoreRequest(targets=targets, registers=registers, parameters=parameters),
        files=CoreFiles(),
        source_text=SourceFiles(source_roots, path_maps),
        lines=packed_lines(line_packs),
    )
    for path, error in read.problems:
        console.note(f"{path}: not read: {error.what}")
    if as_json:
        click.echo(gpu_core_json.render(read.readings, read.sources), nl=False)
    else:
        click.echo(gpu_core.render(read.readings, read.sources, everything=everything), nl=False)
    return exit_status(read)


def exit_status(read: CoresRead) -> int:
    """Return the exit status: an exception outweighs what could not be read."""
    if any(reading.faults for reading in read.readings):
        return 3
    return 4 if read.problems or any(not reading.core.complete for reading in read.readings) else 0
