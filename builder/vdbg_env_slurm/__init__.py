"""The placement `--on slurm`, a plug-in of vdbg-env: the functions that `vdbg_env.run.begin.PlugIn` asks for.

What they need is imported when they are called: `--help` and `--plan` need no Slurm.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vdbg_env.run.begin import Places, RunbookRequest
    from vdbg_env.run.placement import PlacementRequest, StepPlace


def place(places: Places, asked: PlacementRequest) -> StepPlace:
    """Return the nodes of the allocation around this process; raises BadInput outside of one."""
    from vdbg_env_slurm.placement import allocation_place

    return allocation_place(places, asked)


def needs_allocation(environment: Mapping[str, str]) -> bool:
    """Whether a process with this environment is outside of any allocation."""
    return not environment.get("SLURM_JOB_ID")


def allocate(request: RunbookRequest, words: tuple[str, ...], say: Callable[[str], None]) -> int:
    """Start the command line of these words by salloc, in place of this process."""
    from vdbg_env_slurm.jobs import run_in_allocation

    return run_in_allocation(request, words, say)


def queue(
    request: RunbookRequest, *, setup: str, arguments: tuple[str, ...], show_only: bool, say: Callable[[str], None]
) -> str:
    """Queue the whole run by sbatch and return what to print, or with `show_only` the script alone."""
    from vdbg_env_slurm.jobs import queue_run

    return queue_run(request, setup=setup, arguments=arguments, show_only=show_only, say=say)
