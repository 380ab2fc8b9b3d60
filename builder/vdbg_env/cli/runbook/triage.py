"""`vdbg-env triage`."""

from __future__ import annotations

from pathlib import Path

import click

from vdbg_env.application.analysis.triage import TriageRequest, runbook_to_start, triage_logs
from vdbg_env.application.run.library import RunbookLibrary
from vdbg_env.cli.composition import log_source
from vdbg_env.cli.options.container import FEW, container_options, given_words
from vdbg_env.common import console
from vdbg_env.common.errors import BadInput
from vdbg_env.report.triage import triage_json, triage_text

FOUND = 3


@click.command("triage", context_settings={"ignore_unknown_options": False})
@click.argument("logs", nargs=-1, required=True, metavar="LOG...")
@click.option("--json", "as_json", is_flag=True, help="Print the verdict as a JSON document.")
@click.option("--run", is_flag=True, help="Start the runbook that the verdict names, on the command after `--`.")
@click.option("--rules", type=click.Path(path_type=Path), help="A folder of triage rules instead of the shipped ones.")
@container_options(*FEW)
@click.pass_context
def command(
    context: click.Context, /, logs: tuple[str, ...], as_json: bool, run: bool, rules: Path | None, **_place: object
) -> int:
    """Name the failure, the line that says so and the runbook to start.

    LOG is a file, a folder of per-rank logs, or - for the standard input; .gz and .zst are opened. All logs given
    belong to one run. What says where steps run goes to the runbook, with --run.

    \b
    Example:
      vdbg-env triage server.log
      kubectl logs vllm-0 | vdbg-env triage --json -
      vdbg-env triage --run server.log -- vllm serve Qwen/Qwen3-32B
      vdbg-env triage --run server.log --image vdbg/vllm-cu130:lineinfo -- vllm serve Qwen/Qwen3-32B

    Exit status: 3 a failure was found, 0 none was, 2 a log cannot be read.
    """
    place = given_words(context)
    if place and not run:
        raise click.UsageError(f"{place[0]} is for the runbook that --run starts", context)
    targets, argv = _split(logs, run)
    verdict = triage_logs(TriageRequest(targets=targets, rules=rules), log_source())
    runbook = verdict.failure.runbook
    at_hand = runbook_to_start(runbook, {entry.name for entry in RunbookLibrary().entries})
    if run and at_hand:
        console.note(triage_text(verdict, at_hand))
        return _start(context, at_hand, argv, [*place, *(["--json"] if as_json else [])])
    click.echo(triage_json(verdict) if as_json else triage_text(verdict, at_hand), nl=False)
    return FOUND if runbook else 0


def _split(words: tuple[str, ...], run: bool) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """With --run the first word is the log and the rest is the command: click drops the `--` between them."""
    if not run:
        return words, ()
    if len(words) < 2:
        raise BadInput("--run needs the command to run", next_step="vdbg-env triage --run LOG -- vllm serve MODEL")
    return words[:1], words[1:]


def _start(context: click.Context, runbook: str, argv: tuple[str, ...], flags: list[str]) -> int:
    group = context.find_root().command
    words = ["runbook", runbook, *flags, "--", *argv]
    status = group.main(args=words, prog_name="vdbg-env", standalone_mode=False)
    return status if isinstance(status, int) else 0
