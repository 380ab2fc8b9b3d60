"""`vdbg-env shell`: a shell in the debug image."""

from __future__ import annotations

from typing import Unpack

import click

from vdbg_env.cli.options.run import RunFlags, run_container, run_options


@click.command("shell")
@run_options
@click.argument("argv", nargs=-1, type=click.UNPROCESSED, metavar="[-- ARGV...]")
def command(argv: tuple[str, ...], **flags: Unpack[RunFlags]) -> int:
    """Open a shell in the debug image, on this terminal.

    As `run`, but with the keys you type; bash if no other program is named.

    \b
    Example:
      vdbg-env shell
      vdbg-env shell --image my-debug-image:latest -- cuda-gdb python
    """
    return run_container(argv or ("bash",), interactive=True, **flags)
