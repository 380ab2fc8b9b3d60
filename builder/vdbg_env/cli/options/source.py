"""The options that say where lines of code and the text of sources are found."""

from __future__ import annotations

import click

Mapping = tuple[str, str]


class _PathMap(click.ParamType[Mapping]):
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
    help="Take lines of code without line info from this pack, folder or address; may be repeated. "
    "VDBG_LINES and the default folder are used too.",
)
source_root_option = click.option(
    "--source-root",
    "source_roots",
    multiple=True,
    type=click.Path(exists=True, file_okay=False),
    metavar="FOLDER",
    help="Look for source files below FOLDER; may be repeated.",
)
path_map_option = click.option(
    "--path-map",
    "path_maps",
    multiple=True,
    type=_PathMap(),
    metavar="OLD=NEW",
    help="Show sources of OLD... from NEW...; may be repeated.",
)
