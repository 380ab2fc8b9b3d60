"""Write a man page for each command into a folder: man_pages.py FOLDER; `make docs` does, into out/man."""

import sys
from pathlib import Path

import click
from click_man.core import write_man_pages

from vdbg_env import __version__
from vdbg_env.cli import group


def load(commands: click.Group) -> None:
    """Have a group hold its commands, which it otherwise imports when they are called."""
    context = click.Context(commands)
    for name in commands.list_commands(context):
        if command := commands.get_command(context, name):
            commands.add_command(command, name)
            if isinstance(command, click.Group):
                load(command)


folder = Path(sys.argv[1])
folder.mkdir(parents=True, exist_ok=True)
load(group)
write_man_pages("vdbg-env", group, version=__version__, target_dir=str(folder))
