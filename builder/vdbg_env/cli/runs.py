"""`vdbg-env runs`: list, show, compare, report, export, prune and redact recorded runs."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import Path

import click

from vdbg_env.cli.options import AGES, read_retention, retention_options
from vdbg_env.common.console import note, printable
from vdbg_env.common.errors import BadInput
from vdbg_env.record.runs import RUNS_VARIABLE, complete_run, find_run, runs_home
from vdbg_env.run import history
from vdbg_env.run.history import ALL, Selection, list_lines

# What only one of these commands needs is imported there: a list of ten thousand runs takes less than a second.


@click.group("runs")
def runs_command() -> None:
    """List, show, compare, report, export, prune and redact recorded runs.

    Runs are recorded in the folder of VDBG_ENV_RUNS, or else in ./vdbg-runs. RUN is a folder's name, a path, or
    `latest` for the newest.

    \b
    Example:
      vdbg-env runs list
      vdbg-env runs show latest
      vdbg-env runs diff 20261121-072809-illegal-memory-access-1f2e latest
    """


@runs_command.command("list")
@click.argument("folder", required=False, type=click.Path(exists=True, file_okay=False))
@click.option("--group", is_flag=True, help="Group crashes by cause, the most frequent first.")
@click.option("--last", type=click.IntRange(min=1), metavar="N", help="Only the newest N.")
@click.option("--since", metavar="TIME", help="Only runs started since an age (2h, 7d) or a time (2026-11-22T08:00).")
@click.option("--failed", is_flag=True, help="Only runs with a failure or a hang.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON (schema vdbg-env/runs/v1).")
def list_command(
    folder: str | None, group: bool, last: int | None, since: str | None, failed: bool, as_json: bool
) -> int:
    """List the runs, oldest first, or their causes.

    Those of FOLDER, else of the usual one.

    \b
    Example:
      vdbg-env runs list --last 10
      vdbg-env runs list --failed --since 2d
      vdbg-env runs list --group
    """
    selection = Selection(last=last, since=_since(since), failed=failed)
    environment = {**os.environ, RUNS_VARIABLE: folder} if folder else os.environ
    if group:
        return _list_groups(environment, as_json, selection)
    if as_json:
        from vdbg_env.run.history import list_runs

        found = list_runs(environment, selection)
        _note_unreadable(found.unreadable)
        click.echo(history.runs_json(found.runs, found.unreadable), nl=False)
        return 0
    lines, unreadable = list_lines(environment, selection)
    _note_unreadable(unreadable)
    click.echo("".join(f"{history.line(run)}\n" for run in lines), nl=False)
    if not lines:
        note(f"no {'runs' if selection == ALL else 'such runs'} in {runs_home(environment)}")
    return 0


def _since(text: str | None) -> float | None:
    """Return the time that --since names, in seconds since the epoch; one without a zone is of this machine's."""
    if text is None:
        return None
    if found := re.fullmatch(r"([0-9]{1,9})([smhdw])", text.strip().lower()):
        return time.time() - int(found[1]) * AGES[found[2]]
    try:
        return datetime.fromisoformat(text.strip()).timestamp()
    except (ValueError, OverflowError, OSError):
        raise BadInput(
            f"--since {text!r} is neither an age nor a time",
            next_step="write it as in --since 2h, --since 7d or --since 2026-11-22T08:00",
        ) from None


def _list_groups(environment: Mapping[str, str], as_json: bool, selection: Selection) -> int:
    from vdbg_env.run import crash_groups

    groups, unreadable = crash_groups.crash_groups(environment, selection)
    _note_unreadable(unreadable)
    if as_json:
        click.echo(crash_groups.as_json(groups, unreadable), nl=False)
        return 0
    click.echo(crash_groups.as_text(groups), nl=False)
    if not groups:
        note(f"no crash with a known cause in {runs_home(environment)}")
    return 0


def _note_unreadable(errors: Iterable[BadInput]) -> None:
    for error in errors:
        note(printable(f"left out: {error}"))


@runs_command.command("show")
@click.argument("run", shell_complete=complete_run)
@click.option("--json", "as_json", is_flag=True, help="Print JSON (schema vdbg-env/runs/v1).")
def show_command(run: str, as_json: bool) -> int:
    """Show a run's record, even an interrupted one's.

    \b
    Example:
      vdbg-env runs show latest
    """
    from vdbg_env.run.history import recorded

    found = recorded(find_run(run, os.environ))
    if as_json:
        click.echo(history.runs_json([found]), nl=False)
        return 0
    click.echo(history.text(found))
    return 0


@runs_command.command("diff")
@click.argument("before")
@click.argument("after")
@click.option("--json", "as_json", is_flag=True, help="Print JSON (schema vdbg-env/runs-diff/v1).")
def diff_command(before: str, after: str, as_json: bool) -> int:
    """Compare two runs.

    Outcomes, findings, changes and versions are compared, times and paths are not.

    Exit status: 0 nothing differs, 4 something does.

    \b
    Example:
      vdbg-env runs diff 20261121-072809-illegal-memory-access-1f2e latest
    """
    from vdbg_env.record.diff import diff
    from vdbg_env.record.event_log import well_formed

    documents = [find_run(name, os.environ).read_report() for name in (before, after)]
    with well_formed(f"the report of {before} or of {after}"):
        found = diff(*documents)
    if as_json:
        click.echo(history.diff_json(found), nl=False)
    else:
        click.echo(
            "".join(f"{printable(str(d))}\n" for d in found) or "nothing differs but times and paths\n", nl=False
        )
    return 4 if found else 0


@runs_command.command("report")
@click.argument("run", shell_complete=complete_run)
@click.option(
    "--format", "form", type=click.Choice(["terminal", "markdown", "json"]), default="terminal", show_default=True,
    help="Output format.",
)  # fmt: skip
@click.option("--write", is_flag=True, help="Also write every format into the run's folder.")
def report_command(run: str, form: str, write: bool) -> int:
    """Print a run's report, even an interrupted one's.

    \b
    Example:
      vdbg-env runs report latest --format markdown
    """
    from vdbg_env.crash.files import CoreFiles, SourceFiles
    from vdbg_env.report import as_terminal, model, pages
    from vdbg_env.report.assemble import typed_outside
    from vdbg_env.report.pages import write_report
    from vdbg_env.run.again import report_anew
    from vdbg_env.run.library import runbook_library

    directory = find_run(run, os.environ)
    sources = SourceFiles()
    report = report_anew(
        directory,
        runbook_library(directory.runbooks),
        os.environ,
        cores=CoreFiles(),
        sources=sources,
    )
    match form:
        case "markdown":
            click.echo(pages.as_markdown(report), nl=False)
        case "json":
            click.echo(model.report_json(report), nl=False)
        case _:
            click.echo(as_terminal.render(typed_outside(report, str(directory.path))), nl=False)
    if write:
        note(f"written: {', '.join(write_report(report, directory.path))}")
    return report.exit_status


@runs_command.command("prune")
@retention_options("runs")
@click.option("--runbook", metavar="NAME", help="Only runs of this runbook; `guard` for those of vdbg-env guard.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON (schema vdbg-env/runs-prune/v1).")
def prune_command(
    keep: int | None, older_than: str | None, max_size: str | None, yes: bool, runbook: str | None, as_json: bool
) -> int:
    """Remove old runs, with --yes; else show them.

    Only folders that hold a run are removed, with the dumps in them. A run in progress stays.

    \b
    Example:
      vdbg-env runs prune --runbook guard --older-than 30d
      vdbg-env runs prune --keep 100 --max-size 50g --yes
    """
    from vdbg_env.run import history
    from vdbg_env.run.history import PruneRunsRequest, prune_runs

    request = PruneRunsRequest(retention=read_retention(keep, older_than, max_size), runbook=runbook, remove=yes)
    found = prune_runs(request, os.environ, now=time.time())
    click.echo(history.prune_json(found) if as_json else history.as_text(found), nl=False)
    return 0


@runs_command.command("redact")
@click.argument("run", shell_complete=complete_run)
@click.option("--hosts", is_flag=True, help="Also replace host names and addresses by pseudonyms.")
@click.option("--host", "names", multiple=True, help="Also replace this host name; implies --hosts; repeatable.")
def redact_command(run: str, hosts: bool, names: tuple[str, ...]) -> int:
    """Redact a run again.

    Uses the current rules, and the secrets in the current environment.

    \b
    Example:
      vdbg-env runs redact 20261121-072809-illegal-memory-access-1f2e --hosts
    """
    from vdbg_env.run.again import redact_again

    wanted = names if hosts or names else None
    redacted = redact_again(find_run(run, os.environ), os.environ, hosts=wanted)
    for name in redacted.changed:
        click.echo(printable(name))
    for text in redacted.notes:
        note(printable(text))
    note(f"{len(redacted.changed)} files changed")
    return 0


@runs_command.command("export")
@click.argument("run", shell_complete=complete_run)
@click.option(
    "-o", "--output", "target", type=click.Path(path_type=Path), help="The archive to write. [default: ./RUN.tar.gz]"
)
@click.option("--cores", is_flag=True, help="Include GPU cores and other artifacts; they may be large.")
@click.option("--hosts", is_flag=True, help="Also replace host names and addresses by pseudonyms.")
@click.option("--host", "names", multiple=True, help="Also replace this host name; implies --hosts; repeatable.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON (schema vdbg-env/runs-export/v1).")
def export_command(
    run: str, target: Path | None, cores: bool, hosts: bool, names: tuple[str, ...], as_json: bool
) -> int:
    """Pack report and logs, redacted, for an issue.

    Of the logs, those that decided the verdict are packed. The record stays as it is. The copy is redacted by the
    current rules and the secrets in the current environment.

    \b
    Example:
      vdbg-env runs export latest
      vdbg-env runs export latest --hosts -o crash.tar.gz
    """
    from vdbg_env.run import again
    from vdbg_env.run.again import export

    directory = find_run(run, os.environ)
    wanted = names if hosts or names else None
    path = target or Path(f"{directory.path.name}.tar.gz")
    found = export(directory, path, os.environ, cores=cores, hosts=wanted)
    for text in found.notes:
        note(printable(text))
    click.echo(again.as_json(found) if as_json else again.as_text(found), nl=False)
    return 0
