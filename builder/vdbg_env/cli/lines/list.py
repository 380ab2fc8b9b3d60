"""`vdbg-env lines list`."""

from __future__ import annotations

import click

from vdbg_env.application.line_packs.inspect import summarize
from vdbg_env.cli.composition.lines import line_store, line_stores
from vdbg_env.common import console
from vdbg_env.common.errors import VdbgError
from vdbg_env.report.lineinfo import pack_json, pack_text


@click.command("list")
@click.argument("stores", nargs=-1, metavar="[PACK|FOLDER|ADDRESS]...")
@click.option("--json", "as_json", is_flag=True, help="Print JSON (schema vdbg-env/lines/v1).")
def command(stores: tuple[str, ...], as_json: bool) -> int:
    """List packs: those of VDBG_LINES and of the default folder, or those of the places given.

    Exit status: 0; 4 a place cannot be read, or a pack cannot be used.

    \b
    Example:
      vdbg-env lines list
      vdbg-env lines list https://lines.example/vllm oci://registry.example/lines:vllm-0.33.0
    """
    places = [line_store(name) for name in stores] or line_stores()
    found, lost = [], 0
    for store in places:
        try:
            found += [summarize(file) for file in store.packs()]
        except VdbgError as error:
            console.note(f"{store.name}: {error.what}")
            lost += 1
    for summary in found:
        if summary.problem:
            console.note(f"{summary.name}: {summary.problem}")
            lost += 1
    if as_json:
        click.echo(pack_json.packs([pack_json.Listed(summary=summary) for summary in found]), nl=False)
    else:
        click.echo(pack_text.table(s for s in found if not s.problem), nl=False)
        if not found:
            console.note(f"no line pack in {', '.join(store.name for store in places)}")
    return 4 if lost else 0
