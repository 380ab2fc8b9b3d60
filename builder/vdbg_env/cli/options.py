"""Options that several commands share: where lines and sources are found, durations, what to keep of what piles up."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from vdbg_env.common.errors import BadInput
from vdbg_env.common.flags import Function, PairType, with_options

if TYPE_CHECKING:
    from vdbg_env.record.dump_files import Retention


Mapping = tuple[str, str]


class _PathMap(PairType):
    """OLD=NEW: the prefix of a path in the line table, and its replacement."""

    name = "path map"

    def convert(self, value: str | Mapping, param: click.Parameter | None, ctx: click.Context | None) -> Mapping:
        if isinstance(value, tuple):
            return value
        old, equals, new = value.partition("=")
        if not old or not equals:
            self.fail(f"{value!r} is not of the form OLD=NEW, such as /build/vllm=/home/me/vllm", param, ctx)
        return old, new


lines_option = click.option(
    "--lines",
    "line_packs",
    multiple=True,
    metavar="PACK",
    help="Take missing line info from this line pack, folder or URL, as well as from VDBG_LINES; repeatable.",
)
source_root_option = click.option(
    "--source-root",
    "source_roots",
    multiple=True,
    type=click.Path(exists=True, file_okay=False),
    metavar="FOLDER",
    help="Search FOLDER for source files; repeatable.",
)
_MEMORY_HELP = (
    "Name the tensor at a bad address, from the memory maps of a run, a map file, a PyTorch snapshot or a full core."
)
memory_option = click.option("--memory", "--memory-map", "memory", metavar="RUN|FILE", help=_MEMORY_HELP)
# Of triage: its `--memory` is the limit of the container that --run starts.
memory_map_option = click.option("--memory-map", metavar="RUN|FILE", help=_MEMORY_HELP)
path_map_option = click.option(
    "--path-map",
    "path_maps",
    multiple=True,
    type=_PathMap(),
    metavar="OLD=NEW",
    help="Read sources recorded under OLD from NEW; repeatable.",
)


AGES = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
"""The seconds of each unit of an age."""


def retention_options(things: str) -> Callable[[Function], Function]:
    """Give a command the flags that say which of the things to keep, for `read_retention`, and --yes."""
    return with_options(
        click.option("--keep", type=click.IntRange(min=0), metavar="N", help=f"Keep the newest N {things}."),
        click.option("--older-than", metavar="AGE", help="Remove everything older, such as 12h or 7d."),
        click.option("--max-size", metavar="SIZE", help="Remove the oldest until the rest fits, such as 50g."),
        click.option("--yes", is_flag=True, help="Really remove; otherwise only show what would go."),
    )


def read_retention(keep: int | None, older_than: str | None, max_size: str | None) -> Retention:
    """Return what to keep; raises BadInput for what is not an age or a size."""
    from vdbg_env.image.settings import parse_size  # `core`, which is in a file with `dumps`, loads neither
    from vdbg_env.record.dump_files import Retention

    return Retention(
        keep=keep,
        older_than_s=_seconds(older_than) if older_than is not None else None,
        max_bytes=parse_size(max_size, "--max-size") if max_size is not None else None,
    )


def _seconds(text: str) -> float:
    found = re.fullmatch(r"([0-9]{1,9})([smhdw])", text.strip().lower())
    if not found:
        raise BadInput(f"--older-than {text!r} is not an age", next_step="write it as in --older-than 12h, 7d or 2w")
    return float(int(found[1]) * AGES[found[2]])
