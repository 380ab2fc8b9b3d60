"""`vdbg-env locate`: which source line is this address?"""

from __future__ import annotations

import click

from gpucore.arch import as_target
from gpucore.code_map import parse_place
from vdbg_env.application.analysis.locate import LocateReport, LocateRequest, locate
from vdbg_env.cli.composition.files import binary_source
from vdbg_env.cli.composition.lines import packed_lines
from vdbg_env.cli.display.bar import progress_bar
from vdbg_env.cli.options.source import Mapping, lines_option, source_options
from vdbg_env.crash.files import CoreFiles, SourceFiles
from vdbg_env.report.core import location


@click.command("locate")
@click.argument("place", metavar="PLACE")
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option("--kernel", "-k", metavar="NAME", help="The function that a bare offset counts from.")
@click.option("--arch", metavar="SM", help="Keep to one architecture, such as sm_90 or 9.0.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON (schema vdbg-env/locate/v1).")
@lines_option
@source_options
def command(
    place: str,
    files: tuple[str, ...],
    kernel: str | None,
    arch: str | None,
    as_json: bool,
    line_packs: tuple[str, ...],
    source_roots: tuple[str, ...],
    path_maps: tuple[Mapping, ...],
) -> int:
    """Find the source line and the whole inline chain of an instruction.

    PLACE is an absolute address in a GPU core dump, an offset with --kernel, or a function with an offset as
    compute-sanitizer or cuda-gdb print it; without an offset it is where the function begins. NAME may be mangled,
    demangled, or just the function's own name. FILE is a GPU core dump, library, object file, wheel, .cubin, .fatbin or
    a folder of these.

    Exit status: 0 found; 4 found, but without line info or in several places that differ; 2 not found.

    \b
    Example:
      vdbg-env locate 0x7fffd9001140 core.nvcudmp
      vdbg-env locate kern libkernels.so
      vdbg-env locate 0x140 --kernel 'kern<float>' libkernels.so
      vdbg-env locate 'kern(float *, int)+0x120 [in file.cu:6]' libkernels.so --arch sm_90
    """
    request = LocateRequest(query=parse_place(place, kernel), files=files, arch=as_target(arch) if arch else None)
    with progress_bar() as tell:
        report = locate(
            request,
            binaries=binary_source(),
            cores=CoreFiles(),
            source_text=SourceFiles(source_roots, path_maps),
            lines=packed_lines(line_packs),
            tell=tell,
        )
    click.echo(location.render_json(report) if as_json else location.render(report), nl=False)
    return exit_status(report)


def exit_status(report: LocateReport) -> int:
    """Return 0 for one place with lines."""
    return 4 if report.ambiguous or not report.candidates[0].location.chain else 0
