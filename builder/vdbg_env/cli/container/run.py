"""`vdbg-env run`: a program in the debug image."""

from __future__ import annotations

from typing import Unpack

import click

from vdbg_env.cli.options.run import RunFlags, run_container, run_options
from vdbg_env.common.errors import BadInput


@click.command("run")
@run_options
@click.argument("argv", nargs=-1, type=click.UNPROCESSED, metavar="-- ARGV...")
def command(argv: tuple[str, ...], **flags: Unpack[RunFlags]) -> int:
    """Run a program in the debug image, with what a debugger and a crashing process need.

    The container may trace processes (SYS_PTRACE, and a seccomp profile that allows it, not --privileged), writes cores
    of any size, and keeps what a crash leaves in the dump volume at /dumps. A limit that the engine may not raise is
    left out, with a note. The exit status is the program's own.

    \b
    Example:
      vdbg-env run --mount /models:ro -- vllm serve /models/MODEL
      vdbg-env run --gpu none --mount . -- python repro.py
    """
    if not argv:
        raise BadInput("no program is named", next_step="vdbg-env run -- COMMAND, or vdbg-env shell for a shell")
    return run_container(argv, interactive=False, **flags)
