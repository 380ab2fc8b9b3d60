"""`vdbg-env lines verify`."""

from __future__ import annotations

import click

from vdbg_env.application.line_packs.inspect import summarize
from vdbg_env.cli.composition.lines import line_store
from vdbg_env.common.printable import printable
from vdbg_env.common.size import size_text
from vdbg_env.report.lineinfo import pack_json


@click.command("verify")
@click.argument("packs", nargs=-1, required=True, metavar="PACK|FOLDER|ADDRESS...")
@click.option("--json", "as_json", is_flag=True, help="Print JSON (schema vdbg-env/lines/v1).")
def command(packs: tuple[str, ...], as_json: bool) -> int:
    """Read packs to their end: every checksum, every record, every index.

    Exit status: 0 all are sound; 3 one is damaged.

    \b
    Example:
      vdbg-env lines verify vllm-0.33.0.lines
    """
    found = [summarize(file, check=True) for name in packs for file in line_store(name).packs()]
    if as_json:
        click.echo(pack_json.packs([pack_json.Listed(summary=summary) for summary in found]), nl=False)
    else:
        for one in found:
            says = f"damaged: {one.problem}" if one.problem else f"sound, {one.functions:,} functions"
            click.echo(printable(f"{one.name}: {says}, {size_text(one.size)}"))
    return 3 if any(one.problem for one in found) else 0
