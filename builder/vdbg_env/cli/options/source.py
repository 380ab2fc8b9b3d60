"""The options that say where lines of code and the text of sources are found."""

from __future__ import annotations

import click

from vdbg_env.cli.options.given import with_options

Mapping = tuple[str, str]

lines_option = click.option(
    "--lines",
    "line_packs",
    multiple=True,
    metavar="PACK",
    help="Take lines of code without line info from this pack, folder or address; may be repeated. "
    "VDBG_LINES and the default folder are used too.",
)


def parse_mappings(_ctx: click.Context, _param: click.Parameter, values: tuple[str, ...]) -> tuple[Mapping, ...]:
    """Split each OLD=NEW: the prefix of a path in the line table, and its replacement."""
    mappings = []
    for value in values:
        old, equals, new = value.partition("=")
        if not old or not equals:
            raise click.BadParameter(f"{value!r} is not of the form OLD=NEW, such as /build/vllm=/home/me/vllm")
        mappings.append((old, new))
    return tuple(mappings)


source_options = with_options(
    click.option(
        "--source-root",
        "source_roots",
        multiple=True,
        type=click.Path(exists=True, file_okay=False),
        metavar="FOLDER",
        help="Look for source files below FOLDER; may be repeated.",
    ),
    click.option(
        "--path-map",
        "path_maps",
        multiple=True,
        callback=parse_mappings,
        metavar="OLD=NEW",
        help="Show sources of OLD... from NEW...; may be repeated.",
    ),
)
