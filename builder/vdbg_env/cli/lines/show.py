"""`vdbg-env lines show`."""

from __future__ import annotations

import click

from vdbg_env.application.line_packs.inspect import summarize
from vdbg_env.cli.composition.lines import line_store
from vdbg_env.common.errors import UnreadableBinary
from vdbg_env.cuda.line_pack.reader import LinePack
from vdbg_env.report.lineinfo import pack_json, pack_text


@click.command("show")
@click.argument("packs", nargs=-1, required=True, metavar="PACK...")
@click.option(
    "--functions", is_flag=True, help="List every function: code hash, architectures, size, share with lines."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON (schema vdbg-env/lines/v1).")
def command(packs: tuple[str, ...], functions: bool, as_json: bool) -> int:
    """Show what packs have: functions, and the binaries that they were made from.

    \b
    Example:
      vdbg-env lines show vllm-0.33.0.lines
      vdbg-env lines show --functions vllm-0.33.0.lines | grep moe_align
    """
    found = [(file, summarize(file)) for name in packs for file in line_store(name).packs()]
    for _, summary in found:
        if summary.problem:
            raise UnreadableBinary(f"{summary.name}: {summary.problem}", next_step="get it again, or pack it again")
    if as_json:
        listed = [list(LinePack(file.data).records()) if functions else None for file, _ in found]
        documents = [
            pack_json.Listed(summary=summary, records=records)
            for (_, summary), records in zip(found, listed, strict=True)
        ]
        click.echo(pack_json.packs(documents), nl=False)
        return 0
    for file, summary in found:
        click.echo(pack_text.summary(summary), nl=False)
        if functions:
            for line in pack_text.functions(LinePack(file.data).records()):
                click.echo(line)
    return 0
