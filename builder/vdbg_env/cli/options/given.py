"""Give a command a set of options; which of them a user gave, and the error for one that has no effect."""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import Any, TypeVar

import click
from click.core import ParameterSource

Function = TypeVar("Function", bound=Callable[..., Any])


def with_options(*options: Callable[[Any], Any]) -> Callable[[Function], Function]:
    """Return a decorator that gives a command these options, listed in their order."""

    def add(function: Function) -> Function:
        for option in reversed(options):
            function = option(function)
        return function

    return add


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
