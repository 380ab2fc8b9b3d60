"""`vdbg-env dumps list | prune | export`: what crashes left behind.

Below 150 lines: alone, because reading a core needs none of its options.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from vdbg_env.cli.options import read_retention, retention_options
from vdbg_env.common import console
from vdbg_env.common.errors import BadInput
from vdbg_env.crash.dumps import (
    DumpList,
    DumpStore,
    Prune,
    PruneRequest,
    dumps_json,
    export_dumps,
    export_text,
    list_dumps,
    list_text,
    prune_dumps,
    prune_text,
)
from vdbg_env.engine.targets import dump_store
from vdbg_env.image.settings import parse_dumps

Function = TypeVar("Function", bound=Callable[..., Any])


def _shared(function: Function) -> Function:
    place = click.option(
        "--dumps",
        "place",
        default="vdbg-dumps",
        metavar="PLACE",
        help="A volume, or a folder (/x), which needs no Docker.",
    )
    return place(
        click.option("--json", "as_json", is_flag=True, help="Print JSON (schema vdbg-env/dumps/v1).")(function)
    )


def _store(place: str) -> DumpStore:
    if place.startswith("/") and not Path(place).is_dir():
        raise BadInput(
            f"there is no folder {place}",
            cause="a mistyped path, or a folder of another machine or of a container",
            next_step="ls -ld it; without --dumps it is the volume vdbg-dumps",
        )
    return dump_store(parse_dumps(place))


@click.group("dumps")
def dumps_command() -> None:
    """List, remove and copy the dumps that crashes left.

    \b
    Example:
      vdbg-env dumps list
      vdbg-env dumps prune --keep 5 --max-size 50g
      vdbg-env dumps export crash.tar
    """


@dumps_command.command("list")
@_shared
def dumps_list(place: str, as_json: bool) -> int:
    """List dumps, newest first.

    Other files, such as the records of guard, are counted; --json names them. Exit status: 0 everything was read; 4
    something could not be read.

    \b
    Example:
      vdbg-env dumps list --dumps /var/dumps
    """
    found = list_dumps(_store(place), now=time.time())
    click.echo(dumps_json(found) if as_json else list_text(found), nl=False)
    return _told(found)


@dumps_command.command("prune")
@_shared
@retention_options("dumps")
@click.option("--adopt", is_flag=True, help="Allow removal in a place that vdbg-env did not create; needed once.")
def dumps_prune(
    place: str, as_json: bool, keep: int | None, older_than: str | None, max_size: str | None, yes: bool, adopt: bool
) -> int:
    """Remove old dumps, with --yes; else show them.

    Only files whose content is a GPU or host core, compressed or not, are removed. In a place that vdbg-env did not
    create, nothing is removed until --adopt is given once. Exit status: 0 everything was read; 4 something could not be
    read.

    \b
    Example:
      vdbg-env dumps prune --older-than 7d
      vdbg-env dumps prune --older-than 7d --yes
    """
    retention = read_retention(keep, older_than, max_size)
    request = PruneRequest(retention=retention, remove=yes, adopt=adopt)
    found = prune_dumps(request, _store(place), now=time.time())
    click.echo(dumps_json(found) if as_json else prune_text(found), nl=False)
    return _told(found)


def _told(found: DumpList | Prune) -> int:
    """Say what could not be read, and return the exit status: 4 where there was such a thing."""
    for dump in found.unreadable:
        console.note(f"{dump.path}: not read: {dump.problem}")
    return 4 if found.unreadable else 0


@dumps_command.command("export")
@_shared
@click.argument("target", type=click.Path(path_type=Path))
@click.argument("names", nargs=-1, metavar="[FILE]...")
def dumps_export(place: str, as_json: bool, target: Path, names: tuple[str, ...]) -> int:
    """Copy dumps to a folder, or into a .tar file.

    Without FILE, all are copied. Each is printed with its SHA-256.

    \b
    Example:
      vdbg-env dumps export crash.tar
      vdbg-env dumps export ./for-upstream core_node7_4711.nvcudmp
    """
    from vdbg_env.engine.dump_folder import DumpExport

    found = export_dumps(_store(place), DumpExport(target), names, console.note)
    click.echo(dumps_json(found) if as_json else export_text(found), nl=False)
    return 0
