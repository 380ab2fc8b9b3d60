"""`vdbg-env lines push`."""

from __future__ import annotations

import click

from vdbg_env.application.line_packs.carry import push
from vdbg_env.cli.composition.lines import line_store, pack_target
from vdbg_env.common import console


@click.command("push")
@click.argument("packs", nargs=-1, required=True, metavar="PACK...")
@click.argument("target", metavar="FOLDER|oci://HOST/NAME:TAG")
def command(packs: tuple[str, ...], target: str) -> int:
    """Put packs where others find them: into a folder for a web server to hand out, or into a registry.

    Every pack is read to its end before. In a folder it has its sha256 as its name, and an index by code and by name
    lets a client fetch only the packs that it needs. A registry is used with what `docker login` kept.

    \b
    Example:
      vdbg-env lines push vllm-0.33.0.lines /srv/www/lines      then VDBG_LINES=https://HOST/lines
      vdbg-env lines push vllm-0.33.0.lines oci://registry.example/lines:vllm-0.33.0
    """
    places = push([line_store(name) for name in packs], pack_target(target))
    for place in places:
        console.show(f"{place}\n")
    return 0
