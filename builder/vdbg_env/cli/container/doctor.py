"""`vdbg-env doctor`: is this machine able?"""

from __future__ import annotations

import os
import sys
from typing import assert_never

import click

from vdbg_env.cli.composition.containers import host_inspector
from vdbg_env.common.console import shows_colour
from vdbg_env.report.codec import document as doc
from vdbg_env.run import doctor
from vdbg_env.run.doctor import TOOLS, Status, judge


@click.command("doctor")
@click.option("--dumps", "dump_place", default=".", metavar="FOLDER", help="Where dumps will go: its disk is checked.")
@click.option("--json", "as_json", is_flag=True, help="As JSON (schema vdbg-env/doctor/v1).")
def command(dump_place: str, as_json: bool) -> int:
    """Check whether this machine is able to build, run and debug, and say what to type where it is not.

    Nothing is changed and nothing is started but the tools' own --version.

    Exit status: 0 all is well; 4 warnings only; 3 something will fail.

    \b
    Example:
      vdbg-env doctor
      vdbg-env doctor --json --dumps /var/dumps
    """
    found = judge(host_inspector(TOOLS).gather(os.path.abspath(dump_place)))  # noqa: PTH100 - as typed
    colour = shows_colour(sys.stdout)
    click.echo(doc.render(found, doctor.DoctorDocument) if as_json else doctor.as_text(found, colour=colour), nl=False)
    return exit_status(found.status)


def exit_status(status: Status) -> int:
    """Return the exit status that says the worst check."""
    match status:
        case "ok":
            return 0
        case "warn":
            return 4
        case "fail":
            return 3
        case never:
            assert_never(never)
