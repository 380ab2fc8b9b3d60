"""`vdbg-env lines`: line tables for code that was shipped without them."""

from __future__ import annotations

import importlib

import click

# Subcommand -> the line that `--help` shows; its module is imported when it is called.
SUBCOMMANDS: dict[str, str] = {
    "pack": "Take the line tables out of libraries that were built with -lineinfo.",
    "build": "Make line tables for a released wheel, from the wheel alone.",
    "show": "Show what a pack has.",
}


class LazySubcommands(click.Group):
    """A group whose commands are one module each, imported on first use."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(SUBCOMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in SUBCOMMANDS:
            return None
        command: click.Command = importlib.import_module(f"vdbg_env.cli.lines.{cmd_name}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(SUBCOMMANDS.items()))


@click.group("lines", cls=LazySubcommands)
def command() -> None:
    """Line tables apart from code, for wheels that were shipped without them.

    A line pack has the lines of a build with -lineinfo, found by the instructions of each function. `core`, `locate`,
    `verify`, `triage` and runbooks take the lines of stock code from packs: those that --lines names, those that
    VDBG_LINES lists, and those in $XDG_DATA_HOME/vdbg-env/lines.

    \b
    Example:
      vdbg-env lines pack vllm-debug:latest -o vllm-0.33.0.lines --release "vllm 0.33.0"
      vdbg-env core --lines vllm-0.33.0.lines core.nvcudmp
      vdbg-env lines build vllm==0.33.0 --core core.nvcudmp
    """
