"""`vdbg-env lines`: line tables for code that was shipped without them."""

from __future__ import annotations

import click

from vdbg_env.cli.lazy_group import LazyGroup

# Subcommand -> the line that `--help` shows; its module is imported when it is called.
SUBCOMMANDS: dict[str, str] = {
    "pack": "Take the line tables out of libraries that were built with -lineinfo.",
    "build": "Make line tables for a released wheel, from the wheel alone.",
    "list": "List the packs that are looked through.",
    "show": "Show what a pack has.",
    "verify": "Read packs to their end: are they sound?",
    "merge": "Make one pack of several.",
    "push": "Put packs into a folder, for a web server to hand out, or into a registry.",
    "pull": "Get packs from an address or a registry.",
    "prune": "Remove the packs that were not used for longest.",
}


@click.group("lines", cls=LazyGroup, modules={name: ("lines", text) for name, text in SUBCOMMANDS.items()})
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
