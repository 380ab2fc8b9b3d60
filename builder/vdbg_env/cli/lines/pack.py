"""`vdbg-env lines pack`."""

from __future__ import annotations

from pathlib import Path

import click

from vdbg_env.application.line_packs.pack import PackRequest, pack_lines
from vdbg_env.cli.composition.files import binary_source
from vdbg_env.cli.composition.lines import write_file
from vdbg_env.common import console
from vdbg_env.report.lineinfo import pack_json, pack_text


@click.command("pack")
@click.argument("targets", nargs=-1, required=True, metavar="IMAGE|LIBRARY...")
@click.option("--output", "-o", required=True, metavar="FILE", help="The pack to write, such as vllm-0.33.0.lines.")
@click.option("--release", default="", metavar="NAME", help="What to call the build, such as 'vllm 0.33.0'.")
@click.option("--plan", default="", metavar="DIGEST", help="The digest of the build plan.")
@click.option("--arch", "archs", multiple=True, metavar="SM", help="Keep to this architecture; may be repeated.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON (schema vdbg-env/lines/v1).")
def command(
    targets: tuple[str, ...], output: str, release: str, plan: str, archs: tuple[str, ...], as_json: bool
) -> int:
    """Take the line tables out of libraries, object files, wheels, cubins, folders or images built with -lineinfo.

    The same input gives the same bytes. Exit status: 0 packed; 4 packed, but some files could not be read; 2 nothing
    has line info.

    \b
    Example:
      vdbg-env lines pack vllm-debug:latest -o vllm-0.33.0-cu130.lines --release 'vllm 0.33.0'
      vdbg-env lines pack kernels.cubin -o kernels.lines
    """
    request = PackRequest(targets=targets, release=release, plan=plan, archs=archs)
    result = pack_lines(request, binaries=binary_source(), tell=console.note)
    write_file(Path(output), result.data)
    click.echo(
        pack_json.packed(result, output) if as_json else pack_text.packed(result, output),
        nl=False,
    )
    return 4 if result.problems else 0
