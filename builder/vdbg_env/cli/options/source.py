"""The options that say where `core` and `locate` find sources."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import click

Mapping = tuple[str, str]
Command = TypeVar("Command", bound=Callable[..., int])


def parse_mappings(_ctx: click.Context, _param: click.Parameter, values: tuple[str, ...]) -> tuple[Mapping, ...]:
    """Split each OLD=NEW: the prefix of a path in the line table, and its replacement."""
    mappings = []
    for value in values:
        old, equals, new = value.partition("=")
        if not old or not equals:
            raise click.BadParameter(f"{value!r} is not of the form OLD=NEW, such as /build/vllm=/home/me/vllm")
        mappings.append((old, new))
    return tuple(mappings)


def source_options(command: Command) -> Command:
    """Add --source-root and --path-map to a command."""
    command = click.option(
        "--path-map",
        "path_maps",
        multiple=True,
        callback=parse_mappings,
        metavar="OLD=NEW",
        help="Show sources of OLD... from NEW...; may be repeated.",
    )(command)
    return click.option(
        "--source-root",
        "source_roots",
        multiple=True,
        type=click.Path(exists=True, file_okay=False),
        metavar="FOLDER",
        help="Look for source files below FOLDER; may be repeated.",
    )(command)
