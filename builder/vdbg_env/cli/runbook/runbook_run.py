"""Run a runbook request at a terminal: show its progress, print its report, return its exit status."""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import replace

import click

from vdbg_env.cli.display.prompt import AtTerminal, Nobody
from vdbg_env.cli.display.run_progress import RunProgress
from vdbg_env.common.console import note, shows_colour
from vdbg_env.record.runs import find_run
from vdbg_env.report.assemble import typed_outside
from vdbg_env.report.run import as_json, as_terminal
from vdbg_env.run.begin import RunbookRequest
from vdbg_env.run.session import RunView, Session


def run(request: RunbookRequest) -> int:
    """Run the request to its end, print the report, and return the exit status of its verdict."""
    interactive = not request.batch and sys.stdin.isatty() and sys.stderr.isatty()
    shown = RunProgress()
    view = RunView(
        interactive=interactive,
        listener=shown.of_run,
        waiting=shown.waits,
        person=lambda interrupts: AtTerminal(lambda: bool(interrupts.pending())) if interactive else Nobody(),
    )
    kept = find_run(request.resume, os.environ).runbooks if request.resume else ()
    done = Session(replace(request, files=(*kept, *request.files)), shown.notice).run(view)
    if request.json:
        click.echo(as_json.render(done.report), nl=False)
    else:
        colour = shows_colour(sys.stdout)
        width = min(shutil.get_terminal_size((100, 40)).columns, 120)
        report = typed_outside(done.report, str(done.directory))
        click.echo(as_terminal.render(report, colour=colour, width=width), nl=False)
    if done.files:
        note(f"kept in {done.directory}: {', '.join(done.files)}")
    if done.resume:
        note(f"continue with: {done.resume}")
    return done.status
