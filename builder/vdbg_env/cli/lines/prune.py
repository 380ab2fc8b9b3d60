"""`vdbg-env lines prune`."""

from __future__ import annotations

from pathlib import Path

import click

from vdbg_env.application.line_packs.carry import prune
from vdbg_env.cli.composition.lines import pack_folder
from vdbg_env.common import console
from vdbg_env.common.size import size_text
from vdbg_env.image.container.run_settings import parse_size


@click.command("prune")
@click.argument("folder", required=False, type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--max-size", required=True, metavar="SIZE", help="What may stay, such as 2g; 0 removes all.")
@click.option("--dry-run", is_flag=True, help="Say what would be removed.")
def command(folder: Path | None, max_size: str, dry_run: bool) -> int:
    """Remove the packs that were not used for longest: of the cache of fetched packs, or of a folder.

    The cache keeps within its bound by itself (VDBG_LINES_CACHE, 4g).

    \b
    Example:
      vdbg-env lines prune --max-size 1g
    """
    shelf = pack_folder(folder, fetched=True)
    found = prune(shelf, parse_size(max_size, "--max-size"), dry_run=dry_run)
    for pack in found:
        console.show(f"{'would remove' if dry_run else 'removed'} {pack.path} ({size_text(pack.size)})\n")
    return 0
