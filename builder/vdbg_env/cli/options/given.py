"""Give a command a set of options; which of them a user gave, and the error for one that has no effect."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Set
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


class Sectioned(click.Command):
    """A command whose help lists options under titles: those that no section names first."""

    def __init__(self, *args: Any, sections: Mapping[str, Container[str]], **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._sections = sections

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options, section by section."""
        rows: dict[str, list[tuple[str, str]]] = {title: [] for title in ("Options", *self._sections)}
        for option in self.get_params(ctx):
            if isinstance(option, click.Option) and (record := option.get_help_record(ctx)):
                title = next((title for title, names in self._sections.items() if option.name in names), "Options")
                rows[title].append(record)
        for title, records in rows.items():
            with formatter.section(title):
                formatter.write_dl(records)


def given_options(context: click.Context, names: Container[str]) -> list[click.Option]:
    """Return the options with these names that the user gave."""
    return [
        option
        for option in context.command.params
        if isinstance(option, click.Option)
        and option.name in names
        and context.get_parameter_source(option.name) is not ParameterSource.DEFAULT
    ]


def given_except(context: click.Context, names: Set[str]) -> list[click.Option]:
    """Return the options with other names than these that the user gave."""
    return given_options(context, {option.name for option in context.command.params if option.name} - names)


def refuse(context: click.Context, names: Container[str], what_for: str) -> None:
    """Raise a usage error for the first of these options that the user gave; `what_for` ends with what to add."""
    for option in given_options(context, names):
        raise click.UsageError(f"{option.opts[-1]} is for {what_for}", context)


def named_values(_ctx: click.Context, _param: click.Parameter, given: tuple[str, ...]) -> dict[str, str]:
    """Read each NAME=VALUE of a repeatable option."""
    pairs = [text.partition("=") for text in given]
    for name, equals, _ in pairs:
        if not equals or not name:
            raise click.BadParameter(f"{name!r} is not NAME=VALUE")
    return {name: value for name, _, value in pairs}
