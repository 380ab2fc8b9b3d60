"""What `vdbg-env runs prune` does: remove the records that retention names, and no other folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from vdbg_env.common.errors import BadInput
from vdbg_env.record.dump_files import Retention, retired
from vdbg_env.record.runs import RunFolder, remove_run, run_folders, runs_home


@dataclass(frozen=True, kw_only=True)
class PruneRunsRequest:
    """What to keep, of which runbook (None for all), and whether to remove the rest or only to list it."""

    retention: Retention
    runbook: str | None = None
    remove: bool = False


@dataclass(frozen=True, kw_only=True)
class RetiredRun:
    """A run that retention removes, and the rule that says so."""

    run: RunFolder
    why: str


@dataclass(frozen=True, kw_only=True)
class PrunedRuns:
    """What retention removes from a folder; `removed` is False for a mere look.

    Runs that a process works on, and those that cannot be read, stay whatever the rules say.
    """

    place: str
    removed: bool
    runs: tuple[RetiredRun, ...]
    running: tuple[str, ...]
    unreadable: tuple[str, ...]


def prune_runs(request: PruneRunsRequest, environment: Mapping[str, str], *, now: float) -> PrunedRuns:
    """Decide what to remove from the folder of all runs, and remove it if asked to; `now` is since the epoch.

    Raises BadInput when no rule was given, or a run cannot be removed.
    """
    if request.retention == Retention():
        raise BadInput(
            "nothing says what to keep", next_step="vdbg-env runs prune --keep 50, --older-than 30d or --max-size 20g"
        )
    home = runs_home(environment)
    found = run_folders(home)
    ended = [run for run in found.ended if request.runbook in (None, run.runbook)]
    runs = tuple(RetiredRun(run=run, why=why) for run, why in retired(ended, request.retention, now=now))
    for one in runs if request.remove else ():
        remove_run(home, one.run)
    return PrunedRuns(
        place=str(home), removed=request.remove, runs=runs, running=found.running, unreadable=found.unreadable
    )
