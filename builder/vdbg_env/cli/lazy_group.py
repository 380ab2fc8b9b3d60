"""A group of commands, most of them one module each."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import click

from vdbg_env.common.errors import nearest


class LazyGroup(click.Group):
    """Imports the module of a command on its first use.

    `modules` has its `module:function` or its folder, and the line that `--help` shows.

    A command that was added to the group itself needs no module.
    """

    def __init__(self, *, modules: Mapping[str, tuple[str, str]], **settings: Any) -> None:
        super().__init__(**settings)
        self._modules = modules

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._modules)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in self.commands or cmd_name not in self._modules:
            return super().get_command(ctx, cmd_name)
        module, _, function = self._modules[cmd_name][0].partition(":")
        path = f"vdbg_env.cli.{module}" if function else f"vdbg_env.cli.{module}.{cmd_name}"
        command: click.Command = getattr(importlib.import_module(path), function or "command")
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in self._modules.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if not name.startswith("-") and name not in self._modules:
            close = nearest(name, self._modules)
            hint = f" Did you mean {close!r}?" if close else ""
            raise click.UsageError(f"No such command {name!r}.{hint}", ctx)
        return super().resolve_command(ctx, args)
