"""`vdbg-env lines pull`."""

from __future__ import annotations

from pathlib import Path

import click

from vdbg_env.application.line_packs.carry import pull
from vdbg_env.cli.composition.lines import line_store, pack_folder
from vdbg_env.common import console


@click.command("pull")
@click.argument("store", metavar="ADDRESS|oci://HOST/NAME[:TAG][@DIGEST]")
@click.option(
    "--into", type=click.Path(file_okay=False, path_type=Path), metavar="FOLDER",
    help="Where to keep them; the default folder is looked through without any option.",
)  # fmt: skip
def command(store: str, into: Path | None) -> int:
    """Get every pack of an address or a registry, and keep it on this machine.

    \b
    Example:
      vdbg-env lines pull oci://registry.example/lines:vllm-0.33.0
    """
    for path in pull(line_store(store), pack_folder(into)):
        console.show(f"{path}\n")
    return 0
