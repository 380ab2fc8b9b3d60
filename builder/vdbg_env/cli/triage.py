"""`vdbg-env triage`: name the failure that a log tells of, and start the runbook for it.

Below 150 lines: alone, because `core` and `locate` load nothing that starts containers.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from vdbg_env.cli.options import lines_option, memory_map_option
from vdbg_env.cli.places import FEW, PlaceFlags
from vdbg_env.common import console
from vdbg_env.common.errors import BadInput
from vdbg_env.common.flags import Sectioned, given_options, takes_some
from vdbg_env.common.resources import SHIPPED_DATA

if TYPE_CHECKING:
    from vdbg_env.crash.line_packs import PackedLines
    from vdbg_env.crash.memory_map import MemoryMap

Function = TypeVar("Function", bound=Callable[..., Any])


@click.command("triage", cls=Sectioned, everyday={"as_json", "run", "line_packs", "memory_map", "on", "image"})
@click.argument("logs", nargs=-1, required=True, metavar="LOG...")
@click.option("--json", "as_json", is_flag=True, help="Print JSON (schema vdbg-env/triage/v1).")
@click.option("--run", is_flag=True, help="Start the runbook that the verdict names, on the command after `--`.")
@click.option(
    "--rules", type=click.Path(path_type=Path), help="Add the triage rules in this folder to the shipped ones."
)
@lines_option
@memory_map_option
@takes_some(PlaceFlags, FEW)
@click.pass_context
def triage_command(
    context: click.Context,
    /,
    logs: tuple[str, ...],
    as_json: bool,
    run: bool,
    rules: Path | None,
    line_packs: tuple[str, ...],
    memory_map: str | None,
    **place: Any,
) -> int:
    """Name the failure, the line that says so and the runbook to start.

    LOG is a file, a folder of per-rank logs, or - for standard input; .gz, .zst, .xz and .bz2 are decompressed. All
    logs must be of one run. The options for containers and Slurm are for the runbook that --run starts.

    \b
    Example:
      vdbg-env triage server.log
      kubectl logs vllm-0 | vdbg-env triage --json -
      vdbg-env triage --run server.log -- vllm serve Qwen/Qwen3-32B

    Exit status: 3 the logs show a failure, of the GPU or not; 0 they show work and no failure; 4 neither, or
    a guess, with a confidence below 50%; 2 a log cannot be read.
    """
    from vdbg_env.crash.triage import triage_json, triage_logs, triage_text

    given = given_options(context, FEW)
    if given and not run:
        raise click.UsageError(f"{given[0].opts[-1]} is for the runbook that --run starts", context)
    if place["on"] == "slurm":
        raise click.UsageError("--run starts one rank: vdbg-env runbook NAME --on slurm starts more", context)
    targets, argv = _split(logs, run)
    maps: tuple[MemoryMap, ...] = ()
    if memory_map:
        from vdbg_env.crash.memory_files import memory_maps

        maps = memory_maps(memory_map, os.environ)
    verdict = triage_logs(targets, partial(_packs, line_packs), rules=rules, maps=maps)
    start = _runbook(verdict.failure.runbook)
    if run and start:
        console.note(*triage_text(verdict, start).split("\n"))
        return _start_runbook(start, argv, context, PlaceFlags(**place), as_json=as_json)
    console.show(triage_json(verdict, start) if as_json else triage_text(verdict, start))
    return {True: 3, False: 0, None: 4}[verdict.failed]


def _packs(named: tuple[str, ...]) -> PackedLines:
    from vdbg_env.crash.line_packs import packed_lines

    return packed_lines(named)


def _runbook(name: str | None) -> str | None:
    """Return the runbook to start; only one that is not shipped under this name has to be looked for."""
    if name is None or (SHIPPED_DATA / "runbooks" / f"{name}.yaml").is_file():
        return name
    from vdbg_env.crash.triage import runbook_to_start
    from vdbg_env.run.library import runbook_names

    return runbook_to_start(name, runbook_names())


def _start_runbook(
    runbook: str, argv: tuple[str, ...], context: click.Context, place: PlaceFlags, *, as_json: bool
) -> int:
    # What runs a runbook takes twice the memory of reading a log, and is loaded only for it.
    from vdbg_env.cli.runbook import container_request, run
    from vdbg_env.run.begin import RunbookRequest

    container = container_request(context, place)
    return run(RunbookRequest(runbook=runbook, argv=argv, json=as_json, container=container))


def _split(words: tuple[str, ...], run: bool) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """With --run the first word is the log and the rest is the command: click drops the `--` between them."""
    if not run:
        return words, ()
    if len(words) < 2:
        raise BadInput("--run needs the command to run", next_step="vdbg-env triage --run LOG -- vllm serve MODEL")
    return words[:1], words[1:]
