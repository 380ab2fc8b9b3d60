"""Get a run the nodes that it needs: queue it as a batch job, show that job's script, or start it by salloc."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path

import click

import vdbg_env
from vdbg_env.cli.composition.runs import batch_queue, clock, run_ports, this_host
from vdbg_env.cli.options.placement import PlacementFlags
from vdbg_env.common.console import note
from vdbg_env.record.run_directory import RunDirectory, part_of
from vdbg_env.record.runs import find_run, runs_home
from vdbg_env.run import session
from vdbg_env.run.begin import PlacementRequest, RunbookRequest, no_run_in, resumed_placement
from vdbg_env.run.placement import BatchJob
from vdbg_env.runbook.state import Facts

# A job inherits no PYTHONPATH, and no folder of the submitting shell may come before ours.
_START = "import sys; sys.path.insert(0, {0!r}); from vdbg_env.cli import main; sys.exit(main())"
_ENGINE = (sys.executable, "-I", "-c", _START.format(str(Path(vdbg_env.__file__).parents[1])))


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
        engine=_ENGINE,
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


def needs_allocation(request: RunbookRequest, environment: Mapping[str, str]) -> bool:
    """Return whether a run has its ranks on Slurm, and this process is in no allocation."""
    on_slurm = bool(request.placement and request.placement.on == "slurm")
    return on_slurm and not request.replay and not environment.get("SLURM_JOB_ID")


def allocate(request: RunbookRequest, words: tuple[str, ...]) -> int:
    """Let salloc start the same command line, given by its words, once it has the nodes; it takes this one's place."""
    asked = request.placement or PlacementRequest()
    nodes, ranks = asked.nodes, asked.ranks
    if request.resume:
        head = find_run(request.resume, os.environ).read_head()
        known = resumed_placement(head, asked) or asked
        nodes, ranks, asked = known.nodes or part_of(head, "facts", Facts).nodes, known.ranks, known
    else:
        session.planned(request, run_ports(request.files), note)  # what is wrong with it is said before it waits
    flags = batch_queue().allocation_flags(request.runbook, nodes=nodes, ranks=ranks, arguments=asked.arguments)
    gets = f"no allocation here: {shlex.join(flags)} gets one and ends it with the run"
    note(f"{gets}; --submit queues a batch job instead")
    sys.stdout.flush()
    os.execvp(flags[0], [*flags, *_ENGINE, *words])


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
    if request.disk_floor is not None:
        yield from ("--disk-floor", f"{request.disk_floor}b")
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
