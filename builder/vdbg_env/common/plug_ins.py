"""Plug-ins: what other packages add by entry points, and the two that are shipped with this program.

Below 150 lines: every room that has a plug-in finds it here, and loads nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, Final

PLACEMENTS: Final = "vdbg_env.placements"
"""`--on NAME` -> a module with the functions of `vdbg_env.run.begin.PlugIn`."""

LINE_STORES: Final = "vdbg_env.line_stores"
"""Scheme of an address, as in https -> a function from the address to a `vdbg_env.crash.line_packs.LineStore`."""

COMMANDS: Final = "vdbg_env.commands"
"""Name of a command, `GROUP.NAME` below a group -> a click command; `build.onto` -> what does `build --onto`."""

SHIPPED: Final[Mapping[str, Mapping[str, str]]] = {
    PLACEMENTS: {"slurm": "vdbg_env_slurm"},
    LINE_STORES: dict.fromkeys(("http", "https", "oci"), "vdbg_env_lines.remote:open_store"),
    COMMANDS: {
        "build.onto": "vdbg_env_lines.commands:build_onto_image",
        "lines.build": "vdbg_env_lines.commands:build_command",
        "lines.pull": "vdbg_env_lines.commands:pull_command",
        "lines.push": "vdbg_env_lines.commands:push_command",
    },
}
"""What is found without an installation's metadata, as in a checkout, by group and name; pyproject.toml declares it."""


def plug_in(group: str, name: str) -> Any:
    """Return what a plug-in is, loaded; None where none of that name is installed."""
    if name in SHIPPED[group]:
        module, _, attribute = SHIPPED[group][name].partition(":")
        loaded = import_module(module)
        return getattr(loaded, attribute) if attribute else loaded
    from importlib.metadata import entry_points  # takes 20 ms, and is needed for other packages only

    return next((found.load() for found in entry_points(group=group, name=name)), None)


def installed(group: str) -> frozenset[str]:
    """Return the names of the plug-ins that other packages have installed."""
    from importlib.metadata import entry_points

    return frozenset(entry_points(group=group).names) - SHIPPED[group].keys()
