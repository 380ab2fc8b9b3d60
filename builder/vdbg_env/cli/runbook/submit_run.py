"""Queue a runbook's run as a batch job, or show the script that would be queued."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import click

import vdbg_env
from vdbg_env.application import session
from vdbg_env.application.ports.places import BatchJob
from vdbg_env.application.run.begin import no_run_in
from vdbg_env.application.run.request import RunbookRequest
from vdbg_env.cli.composition.runs import batch_queue, clock, run_ports, this_host
from vdbg_env.cli.options.placement import PlacementFlags
from vdbg_env.common.console import note
from vdbg_env.record.run_directory import RunDirectory
from vdbg_env.record.runs import find_run, runs_home

# A job inherits no PYTHONPATH, and no folder of the submitting shell may come before ours.
_START = "import sys; sys.path.insert(0, {0!r}); from vdbg_env.cli import main; sys.exit(main())"


def queue(request: RunbookRequest, flags: PlacementFlags, *, show_only: bool) -> int:
    """Lint the runbook, then queue the job; with `show_only` print its script."""
    if request.resume or request.replay or request.record or request.bisect:
        raise click.UsageError("--submit queues a new run: leave out --resume, --replay, --record and --bisect")
    session.planned(request, run_ports(request.files), note)
    folder = _folder(request)
    no_run_in(RunDirectory(folder), request.runbook)
    first, *others = _words(request)
    job = BatchJob(
        name=f"vdbg-{request.runbook}",
        folder=str(folder),
        engine=(sys.executable, "-I", "-c", _START.format(str(Path(vdbg_env.__file__).parents[1]))),
        words=(first, "--run-dir", str(folder), *others),
        resume=("runbook", "--batch", "--resume", str(folder)),
        nodes=flags["nodes"],
        ranks=flags["ranks"],
        setup=str(flags["setup"]) if flags["setup"] else "",
        arguments=flags["submit_arguments"],
    )
    jobs = batch_queue()
    if show_only:
        click.echo(jobs.script(job), nl=False)
        return 0
    number = jobs.submit(job)
    click.echo(f"job {number}, to be kept in {folder}")
    note(f"why it waits: squeue --job {number}; follow it with: tail -F {folder}/slurm.txt")
    note(f"its report: vdbg-env runs report {folder}")
    return 0


def _folder(request: RunbookRequest) -> Path:
    """Return the folder that the run will be kept in: it must be known before the run begins."""
    started = datetime.fromtimestamp(clock().wall(), UTC)
    name = f"{started:%Y%m%d-%H%M%S}-{request.runbook}-{this_host().token()}"
    return (request.run_dir or runs_home(os.environ) / name).absolute()


def _words(request: RunbookRequest) -> Iterator[str]:
    """Yield the words of the engine's command that are the request's."""
    placement = request.placement
    yield from ("runbook", request.runbook, "--on", "slurm", "--batch")
    yield from (word for file in request.files for word in ("--file", str(file.absolute())))
    yield from (word for name, value in request.inputs.items() for word in ("--input", f"{name}={value}"))
    if request.total_s is not None:
        yield from ("--total-time", f"{request.total_s:g}s")
    if request.pseudonyms:
        yield "--pseudonyms"
    for name, value in (("--nodes", placement and placement.nodes), ("--ranks", placement and placement.ranks)):
        if value:
            yield from (name, str(value))
    if scratch := placement and placement.scratch:
        yield from ("--scratch", scratch.folder, "--scratch-limit", f"{scratch.limit}b")
    yield from (f"--slurm-arg={word}" for word in (placement.arguments if placement else ()))
    if request.from_run:
        yield from ("--from", str(find_run(request.from_run, os.environ).path))
    if request.argv:
        yield from ("--", *request.argv)
