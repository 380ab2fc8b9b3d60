"""Declare a command-line option as the field of the dataclass that it fills; `cli.options.given` gives it to click."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

FLAGS: Final = "flags"
"""The key of a field's metadata under which its options are."""


@dataclass(frozen=True, kw_only=True)
class Flag:
    """An option; what its field's type says of it is not repeated here.

    `names` are as typed, `--field-name` where there are none. `between` are the least and the most of a number, `path`
    the settings of click's Path, `choice` a class of choices of its own, `callback` one of click's. `section` is the
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
    """Return a field that this option fills, or one of two (`also`); see `Flag`."""
    one = Flag(
        names=names, help=help, section=section, between=between, path=path or {}, choice=choice, callback=callback,
        settings=settings,
    )  # fmt: skip
    return field(default=default, metadata={FLAGS: (one, also) if also else (one,)})
