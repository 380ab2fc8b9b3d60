"""The command tree as the site's page of commands shows it: with the commands of plug-ins, and examples as code.

mkdocs-click looks at `Group.commands` alone, which lacks what a group loads by name, and knows no `\\b`.
"""

import copy
import inspect

import click

from vdbg_env.cli import group


def tree_of(command: click.Command, context: click.Context) -> click.Command:
    """Return a copy of a command whose help is Markdown, with all of its subcommands."""
    shown = copy.copy(command)
    shown.help = as_markdown(command.help or "")
    if isinstance(command, click.Group) and isinstance(shown, click.Group):
        below = click.Context(command, info_name=command.name, parent=context)
        loaded = {name: command.get_command(below, name) for name in command.list_commands(below)}
        shown.commands = {name: tree_of(one, below) for name, one in loaded.items() if one is not None}
    return shown


def as_markdown(text: str) -> str:
    """Return the help of a command with each paragraph that click leaves as it is (`\\b`) as a block of code."""
    paragraphs = []
    for paragraph in inspect.cleandoc(text).split("\n\n"):
        lines = paragraph.splitlines()
        if lines and lines[0].strip() == "\b":
            title, *rest = lines[1:]
            paragraphs.append("\n".join([title, "", "```text", *inspect.cleandoc("\n".join(rest)).splitlines(), "```"]))
        else:
            paragraphs.append(paragraph)
    return "\n\n".join(paragraphs)


tree = tree_of(group, click.Context(group, info_name="vdbg-env"))
