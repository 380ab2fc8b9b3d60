"""Declare a command-line option as the field of the dataclass that it fills, and give it to click."""

from __future__ import annotations

import functools
from collections.abc import Callable, Container, Iterator, Mapping, Sequence, Set
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar, get_args, get_origin, get_type_hints

import click
from click.core import ParameterSource

# Generic since click 8.2 and 8.4; an environment with vLLM may keep 8.1.
if TYPE_CHECKING:
    Choice = click.Choice[str]
    PairType = click.ParamType[tuple[str, str]]
else:
    Choice, PairType = click.Choice, click.ParamType

FLAGS: Final = "flags"
"""The key of a field's metadata under which its options are."""


@dataclass(frozen=True, kw_only=True)
class Flag:
    """An option; what its field's type says is not repeated here.

    `names` are as typed, `--field-name` where there are none. `between` are the least and the most of a number, `path`
    the settings of click's Path, `choice` its own class of choices, `callback` one of click's. `section` is the
    title under which help lists it, and `settings` are for click as they are.
    """

    names: tuple[str, ...]
    help: str
    section: str = ""
    between: tuple[int, int | None] | None = None
    path: Mapping[str, Any] = field(default_factory=dict)
    choice: type | None = None
    callback: Callable[..., object] | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)


def flag(
    *names: str,
    help: str,
    default: Any = None,
    section: str = "",
    between: tuple[int, int | None] | None = None,
    path: Mapping[str, Any] | None = None,
    choice: type | None = None,
    callback: Callable[..., object] | None = None,
    also: Flag | None = None,
    **settings: Any,
) -> Any:
    """Return a field that this option fills, or one of two (`also`); see `Flag`. The default dict is an empty one."""
    one = Flag(
        names=names, help=help, section=section, between=between, path=path or {}, choice=choice, callback=callback,
        settings=settings,
    )  # fmt: skip
    metadata = {FLAGS: (one, also) if also else (one,)}
    return (
        field(default_factory=dict, metadata=metadata) if default is dict else field(default=default, metadata=metadata)
    )


Function = TypeVar("Function", bound=Callable[..., Any])


def with_options(*options: Callable[[Any], Any]) -> Callable[[Function], Function]:
    """Return a decorator that gives a command these options, listed in their order."""

    def add(function: Function) -> Function:
        for option in reversed(options):
            function = option(function)
        return function

    return add


def takes(*, option: type[click.Option] | None = None, **groups: type) -> Callable[[Function], Function]:
    """Give a command the options that the fields of dataclasses declare, in their order, of a class of options.

    The command gets each dataclass, filled, under the name that it has here.
    """

    def add(function: Function) -> Function:
        @functools.wraps(function)
        def filled(*args: Any, **values: Any) -> Any:
            made = {
                name: group(**{one.name: values.pop(one.name) for one in fields(group) if FLAGS in one.metadata})
                for name, group in groups.items()
            }
            return function(*args, **made, **values)

        options = [one for group in groups.values() for one in options_of(group, option)]
        return with_options(*options)(filled)  # type: ignore[return-value]

    return add


def takes_some(group: type, names: Sequence[str]) -> Callable[[Function], Function]:
    """Give a command these of the options that a dataclass declares, in this order, each as a separate value."""
    declared = dict(zip((one.name for one in fields(group)), options_of(group), strict=True))
    return with_options(*(declared[name] for name in names))


def options_of(group: type, option: type[click.Option] | None = None) -> Iterator[Callable[[Any], Any]]:
    """Yield click's options for the fields of a dataclass that are declared by `flag`."""
    hints = get_type_hints(group)
    for one in fields(group):
        for flag in one.metadata.get(FLAGS, ()):
            names = flag.names or (f"--{one.name.replace('_', '-')}",)
            default = None if one.default is MISSING else one.default
            settings = {**_settings(hints[one.name], default, flag), **flag.settings}
            yield click.option(*names, one.name, cls=option or Option, section=flag.section, help=flag.help, **settings)


def _settings(hint: Any, default: Any, flag: Flag) -> dict[str, Any]:
    """Return what the type of a field and its default say of its option."""
    if "flag_value" in flag.settings:
        return {"default": default} if flag.settings["flag_value"] == default else {}
    settings: dict[str, Any] = {"callback": flag.callback} if flag.callback else {}
    if NoneType in get_args(hint):
        hint = next(kind for kind in get_args(hint) if kind is not NoneType)
    if hint is bool:
        return {"default": default} if any("/" in name for name in flag.names) else {"is_flag": True}
    if get_origin(hint) is tuple:
        hint, settings["multiple"] = get_args(hint)[0], True
    elif default is not None:
        settings["default"] = default
    if get_origin(hint) is Literal:
        settings["type"] = (flag.choice or click.Choice)(list(get_args(hint)))
    elif hint is Path:
        settings["type"] = click.Path(path_type=Path, **dict(flag.path))
    elif flag.path:
        settings["type"] = click.Path(**dict(flag.path))
    elif flag.between:
        settings["type"] = click.IntRange(*flag.between)
    return settings


class Option(click.Option):
    """An option that knows under which title help lists it."""

    def __init__(self, *args: Any, section: str = "", **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.section = section


class Sectioned(click.Command):
    """A command whose help lists options under titles: those without a section first.

    `sections` has the titles in their order; one given with names of options is theirs, too. Where `everyday` names
    options, `--help` lists these alone, and `--help-all` all.
    """

    def __init__(
        self,
        *args: Any,
        sections: Mapping[str, Container[str]] | Sequence[str] = (),
        everyday: Container[str] = (),
        **settings: Any,
    ) -> None:
        super().__init__(*args, **settings)
        self._sections = sections if isinstance(sections, Mapping) else dict.fromkeys(sections, ())
        self._everyday = everyday
        if everyday:
            self.params.append(
                click.Option(
                    ["--help-all"],
                    is_flag=True,
                    is_eager=True,
                    expose_value=False,
                    allow_from_autoenv=False,
                    callback=_show_all,
                    help="Show every option and exit.",
                )
            )

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options, section by section."""
        few = bool(self._everyday) and _ALL not in ctx.meta
        rows: dict[str, list[tuple[str, str]]] = {title: [] for title in ("Options", *self._sections)}
        for option in self.get_params(ctx):
            if few and not {"--help", "--help-all"} & {*option.opts} and option.name not in self._everyday:
                continue
            if isinstance(option, click.Option) and (record := option.get_help_record(ctx)):
                named = (title for title, names in self._sections.items() if option.name in names)
                title = next(named, getattr(option, "section", ""))
                rows["Options" if few or title not in rows else title].append(record)
        for title, records in rows.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)


_ALL: Final = "vdbg_env.help_all"


def _show_all(context: click.Context, _parameter: click.Parameter, asked: bool) -> None:
    if asked:
        context.meta[_ALL] = True
        click.echo(context.get_help(), color=context.color)
        context.exit()


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


def read_by(read: Callable[[str], object]) -> Callable[..., object]:
    """Return the callback of an option whose text `read` turns into its value; a ValueError is a usage error."""

    def value(_ctx: click.Context, _param: click.Parameter, text: str | None) -> object:
        try:
            return None if text is None else read(text)
        except ValueError as error:
            raise click.BadParameter(str(error)) from None

    return value


def named_values(_ctx: click.Context, _param: click.Parameter, given: tuple[str, ...]) -> dict[str, str]:
    """Read each NAME=VALUE of a repeatable option."""
    pairs = [text.partition("=") for text in given]
    for name, equals, _ in pairs:
        if not equals or not name:
            raise click.BadParameter(f"{name!r} is not NAME=VALUE")
    return {name: value for name, _, value in pairs}
