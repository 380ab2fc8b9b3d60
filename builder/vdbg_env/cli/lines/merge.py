"""`vdbg-env lines merge`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click

from vdbg_env.application.line_packs.carry import merged
from vdbg_env.cli.composition.lines import line_store, write_file
from vdbg_env.report.lineinfo import pack_text


@click.command("merge")
@click.argument("packs", nargs=-1, required=True, metavar="PACK|FOLDER|ADDRESS...")
@click.option("--output", "-o", required=True, metavar="FILE", help="The pack to write.")
def command(packs: tuple[str, ...], output: str) -> int:
    """Make one pack of several; their order makes no difference.

    Functions of the same code and lines become one. Where builds agree on the code and disagree on its lines, both are
    kept, and both are shown.

    \b
    Example:
      vdbg-env lines merge moe.lines attention.lines -o vllm-0.33.0.lines
    """
    data, summary = merged(line_store(name) for name in packs)
    write_file(Path(output), data)
    click.echo(pack_text.summary(replace(summary, name=output)), nl=False)
    return 0
