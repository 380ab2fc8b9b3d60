"""`vdbg-env mcp`: serve what crashes left to a coding agent; alone, because only it needs the package mcp."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import tempfile
from pathlib import Path
from typing import NoReturn

import click

from vdbg_env.cli.options import lines_option
from vdbg_env.common.errors import HostNotAble


@click.command("mcp")
@click.argument("folders", nargs=-1, required=True, type=click.Path(exists=True, file_okay=False), metavar="FOLDER...")
@lines_option
def mcp_command(folders: tuple[str, ...], line_packs: tuple[str, ...]) -> NoReturn:
    """Serve cores, logs and runs to a coding agent, by the Model Context Protocol.

    It speaks on standard input and output: name this command in the configuration of your agent. Its tools read the GPU
    cores, logs, recorded runs, libraries and sources below each FOLDER, and no other file. They write nothing and run
    none of your programs. Linux 5.13 and later enforces that (Landlock), unless line packs are fetched.

    \b
    Example:
      vdbg-env mcp /dumps ~/vdbg-runs ~/src/vllm
      claude mcp add vdbg-env -- vdbg-env mcp /dumps ~/src/vllm
    """
    if importlib.util.find_spec("mcp") is None:
        from vdbg_env.common.distribution import install_words

        raise HostNotAble("the package mcp is not installed", next_step=install_words("mcp"))
    import anyio

    from vdbg_env.agents.confine import confine
    from vdbg_env.agents.server import serve
    from vdbg_env.agents.tools import Tools
    from vdbg_env.crash.line_packs import open_stores, packed_lines

    stores = open_stores(line_packs)  # a pack that is missing is told now, not in each answer
    tools = Tools(folders, lambda: packed_lines(line_packs))
    scratch = tempfile.mkdtemp(prefix="vdbg-env-mcp-")

    def end(status: int) -> NoReturn:
        shutil.rmtree(scratch, ignore_errors=True)
        os._exit(status)  # a thread that still reads a file would delay the end, or abort it in the middle of RE2

    signal.signal(signal.SIGTERM, lambda number, _: end(128 + number))
    tempfile.tempdir = scratch
    if all(store.local for store in stores):  # to fetch takes certificates, proxies, passwords and a cache
        confine([*folders, *(store.name for store in stores)], Path(scratch))
    anyio.run(serve, tools)
    end(0)
