"""The option that names line packs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., int])


def lines_option(command: Command) -> Command:
    """Add --lines to a command."""
    return click.option(
        "--lines",
        "line_packs",
        multiple=True,
        metavar="PACK",
        help="Take lines of code without line info from this pack, folder or address; may be repeated. "
        "VDBG_LINES and the default folder are used too.",
    )(command)
