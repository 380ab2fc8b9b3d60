"""Which options a user gave, and the error for one that has no effect."""

from __future__ import annotations

from collections.abc import Container

import click
from click.core import ParameterSource


def given_options(context: click.Context, names: Container[str]) -> list[click.Option]:
    """Return the options with these names that the user gave."""
    return [
        option
        for option in context.command.params
        if isinstance(option, click.Option)
        and option.name in names
        and context.get_parameter_source(option.name) is not ParameterSource.DEFAULT
    ]


def refuse(context: click.Context, names: Container[str], what_for: str) -> None:
    """Raise a usage error for the first of these options that the user gave; `what_for` ends with what to add."""
    for option in given_options(context, names):
        raise click.UsageError(f"{option.opts[-1]} is for {what_for}", context)
