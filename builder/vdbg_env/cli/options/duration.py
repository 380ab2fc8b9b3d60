"""A duration as the value of an option."""

from __future__ import annotations

import click

from vdbg_env.runbook.model import duration_s


def seconds(_context: click.Context, _parameter: click.Parameter, text: str | None) -> float | None:
    """Read a duration, as a callback of an option; None where none is given."""
    try:
        return None if text is None else duration_s(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
