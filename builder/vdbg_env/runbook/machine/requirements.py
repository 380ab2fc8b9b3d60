"""List what a runbook requires and the host does not have, before anything starts."""

from __future__ import annotations

from collections.abc import Iterator

from vdbg_env.runbook.model import Requires
from vdbg_env.runbook.model.quantities import size_text
from vdbg_env.runbook.state import Facts


def unmet(requires: Requires, facts: Facts, *, free_disk: int | None) -> tuple[str, ...]:
    """Return one sentence for each thing that is missing; `free_disk` in bytes, None where it was not looked up.

    What was not looked up does not count against the host: a step that needs it reports that when it is reached.
    """
    return tuple(_unmet(requires, facts, free_disk))


def _unmet(requires: Requires, facts: Facts, free_disk: int | None) -> Iterator[str]:
    if facts.tools is not None:
        yield from (f"{tool} was not found" for tool in requires.tools if tool not in facts.tools)
    if requires.gpu and facts.gpus == 0:
        yield "no GPU is visible"
    if requires.lineinfo and facts.lineinfo is False:
        yield "the libraries carry no line info"
    if requires.free_disk is not None and free_disk is not None and free_disk < requires.free_disk:
        yield f"{size_text(free_disk)} are free for the record, {size_text(requires.free_disk)} are needed"
