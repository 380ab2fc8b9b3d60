"""The command line: flags become a request, a room answers, the answer becomes text and an exit status."""

from __future__ import annotations

import atexit
import codecs
import gc
import importlib
import io
import itertools
import json
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import click

from vdbg_env import __version__
from vdbg_env.common import console, plug_ins
from vdbg_env.common.console import nearest
from vdbg_env.common.errors import ANY_ERROR, BadInput, Interrupted, VdbgError, quoted
from vdbg_env.common.files import refusal_cause
from vdbg_env.common.stop import ToldToStop

# Task -> command -> its module and function, and the line that `--help` shows. A command's module is imported only when
# the command is called: `vdbg-env --version` and shell completion stay fast, whatever other commands need.
TASKS: dict[str, dict[str, tuple[str, str]]] = {
    "Explain what a crash left": {
        "triage": ("triage:triage_command", "Name the failure in a log, and the line that shows it."),
        "core": ("crash:core_command", "Read GPU core dumps: kernel, source line, and why."),
        "locate": ("crash:locate_command", "Find the source line of an address."),
        "demo": ("start:demo_command", "Explain a bundled crash; needs no GPU."),
    },
    "Debug a job": {
        "runbook": ("runbook:runbook_command", "Rerun a failing job step by step, to its cause."),
        "runbooks": ("runbooks:runbooks_command", "List, show, check and explain runbooks."),
        "runs": ("runs:runs_command", "List, show, compare, report and redact runs."),
        "capture": ("capture:capture_command", "Record a server's requests, to replay them."),
        "dump": ("crash:dump_command", "Make a hung program write GPU core dumps."),
    },
    "Run in production": {
        "guard": ("runbook:guard_command", "Run a command as it is, and explain its failure."),
        "dumps": ("dumps:dumps_command", "List, remove and copy dumps."),
    },
    "Build and prove": {
        "build": ("build:build_command", "Build a debug image, and prove its line info."),
        "verify": ("verify:verify_command", "Prove that every cubin carries line info."),
        "images": ("images:images_command", "List, show and check build profiles."),
        "lines": ("lines:lines_command", "Make and share line tables for stock wheels."),
        "render": ("build:render_command", "Write Dockerfile, manifests or patches to a folder."),
        "bundle": ("build:bundle_command", "Pack a build for a site without network."),
        "run": ("container:run_command", "Run a program in the debug image."),
        "shell": ("container:shell_command", "Open a shell in the debug image."),
    },
    "Set up": {
        "doctor": ("container:doctor_command", "Check this machine, and print how to fix it."),
        "mcp": ("mcp:mcp_command", "Serve cores, logs and runs to a coding agent."),
    },
}
# What people look for at the top, and where it is; there they may get a command that is only spelled alike.
_ELSEWHERE = {
    "report": "runs report",
    "diff": "runs diff",
    "redact": "runs redact",
    "lint": "runbooks lint",
    "explain": "runbooks explain",
    "plan": "runbook NAME --plan",
}
_OF_OUR_OWN = 128  # the least status that makes `git bisect run` stop


class LazyGroup(click.Group):
    """Imports the module of a command on its first use.

    `tasks` has, below each heading of `--help`, its `module:function` and its line there; a command that was added to
    the group itself has no module, and neither has one of a plug-in. Other packages add commands by the entry points of
    `plug_ins.COMMANDS`.
    """

    def __init__(self, *, tasks: Mapping[str, Mapping[str, tuple[str, str]]], **settings: Any) -> None:
        super().__init__(**settings)
        self._tasks = tasks
        self._modules = {name: found for commands in tasks.values() for name, found in commands.items()}
        self._prefix = f"{self.name}." if self.name else ""  # of the names of plug-ins

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._modules)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in self.commands:
            return super().get_command(ctx, cmd_name)
        module, _, function = self._modules.get(cmd_name, ("", ""))[0].partition(":")
        found: click.Command | None = (
            getattr(importlib.import_module(f"vdbg_env.cli.{module}"), function)
            if module
            else plug_ins.plug_in(plug_ins.COMMANDS, f"{self._prefix}{cmd_name}")
        )
        if not gc.isenabled():  # see `__main__`
            gc.freeze()
            gc.enable()
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        widest = max(map(len, self._modules))
        for task, commands in self._tasks.items():
            with formatter.section(task):
                formatter.write_dl([(f"{name:{widest}}", text) for name, (_, text) in commands.items()])
        installed = sorted(plug_ins.installed(plug_ins.COMMANDS))
        added = [name.removeprefix(self._prefix) for name in installed if name.startswith(self._prefix)]
        if others := [(name, "Of another package.") for name in added if "." not in name]:
            with formatter.section("Commands of other packages"):
                formatter.write_dl(others)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if not name.startswith("-") and name not in self._modules and self.get_command(ctx, name) is None:
            close = (_ELSEWHERE.get(name) if self._tasks is TASKS else None) or nearest(name, self._modules)
            hint = f" Did you mean {close!r}?" if close else ""
            raise click.UsageError(f"No such command {name!r}.{hint}", ctx)
        return super().resolve_command(ctx, args)


@click.group(
    cls=LazyGroup,
    tasks=TASKS,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name="vdbg-env")
@click.option("-v", "--verbose", count=True, help="Log what vdbg-env does to stderr; -vv logs more.")
@click.pass_context
def group(context: click.Context, verbose: int) -> None:
    """From a crashed GPU kernel to its source line, and to the reason."""
    _log(verbose, os.environ.get("VDBG_LOG", ""), lenient=context.invoked_subcommand == "guard")
    if context.invoked_subcommand is None:
        from vdbg_env.cli.start import first_contact

        click.echo(first_contact())


def _log(verbose: int, wanted: str, *, lenient: bool) -> None:
    """Log to stderr from the level asked for; without -v and VDBG_LOG the logging module is not even imported.

    A wrong level in VDBG_LOG is refused, or left out where that is `lenient`.
    """
    if not verbose and not wanted:
        return
    import logging

    level = logging.getLevelNamesMapping().get(wanted.upper()) if wanted else None
    if wanted and level is None:
        wrong = f"VDBG_LOG={wanted} is not a level: debug, info, warning or error"
        if not lenient:
            raise click.UsageError(wrong)
        console.note(f"guard: {wrong}")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s.%(msecs)03d %(name)s: %(message)s", datefmt="%H:%M:%S"))
    logger = logging.getLogger("vdbg_env")
    logger.handlers = [handler]
    logger.setLevel((logging.INFO, logging.DEBUG)[min(verbose, 2) - 1] if verbose else level or logging.INFO)


def main(argv: Sequence[str] | None = None, *, instead: Callable[[Exception], int] | None = None) -> int:
    """Run the command line and return its exit status; the only place that turns errors into one.

    `instead` is what is done where `guard` could not start its command, which no mistake of the user kept from it.
    """
    signal.signal(signal.SIGTERM, _terminated)
    atexit.register(gc.freeze)  # or Python would look through all objects once more before it ends
    _open_closed_streams()
    _outlive_readers()
    _escape_what_a_stream_cannot_show()
    words = sys.argv[1:] if argv is None else argv
    if "--bisect" in itertools.takewhile(lambda word: word != "--", words):
        return _for_git_bisect(words)
    return _status(words, instead=instead)


def _for_git_bisect(argv: Sequence[str]) -> int:
    """Return the status of a run for `git bisect run`, which takes 1 to 127 but 125 for a bad revision.

    A failure of this program itself, a flag it does not know included, is made 128 and more: git then stops.
    """
    try:
        status = _status(argv, failed=_OF_OUR_OWN)
    except Exception:  # a bug in this program names no culprit either
        import traceback  # for a fault of this program alone

        traceback.print_exc()
        return _OF_OUR_OWN
    return status


def _status(argv: Sequence[str], *, failed: int = 0, instead: Callable[[Exception], int] | None = None) -> int:
    """Run a command and return its exit status; that of an error is at least `failed`."""
    try:
        status = _answer(argv, instead)
        sys.stdout.flush()
    except ANY_ERROR as error:
        console.show_error(error)
        return max(error.exit_status if isinstance(error, VdbgError) else BadInput.exit_status, failed)
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except click.ClickException as error:
        if isinstance(error, click.NoSuchOption) and error.possibilities:  # to click the dashes count as alike
            wanted = error.option_name.lstrip("-")
            error.possibilities[:] = [one for one in error.possibilities if nearest(wanted, [one.lstrip("-")])]
        error.show()
        return max(2, failed)
    except ToldToStop as stop:
        console.note(str(stop))
        return 128 + stop.signal
    except (click.Abort, KeyboardInterrupt):
        console.note("interrupted")
        return 130
    except MemoryError:
        console.show_error(VdbgError("not enough memory", cause="a limit of this shell (ulimit -v), or a huge input"))
        return max(1, failed)
    except OSError as error:
        # What no command foresaw of the system: a full disk below stdout, a file that went away while it was read.
        place = f"{error.filename}: " if error.filename else ""
        look = f"ls -ld {quoted(error.filename)}" if error.filename else "df -h, for a full disk"
        if isinstance(error, FileNotFoundError) and not error.filename:  # no file was named: it is the current folder
            place, look = "the current folder: ", "cd to one that exists"
        what = f"{place}{error.strerror or error}"
        console.show_error(VdbgError(what, cause=refusal_cause(error), next_step=look))
        _drop_output()
        return max(1, failed)
    return status if isinstance(status, int) else 0


def _answer(argv: Sequence[str], instead: Callable[[Exception], int] | None) -> object:
    try:
        return group.main(args=list(argv), obj=tuple(argv), prog_name="vdbg-env", standalone_mode=False)
    except (click.ClickException, click.exceptions.Exit, click.Abort, BadInput, Interrupted):
        raise  # typed so
    except Exception as error:
        if instead is None:
            raise
        return instead(error)


def _open_closed_streams() -> None:
    """Give a stream that was closed before the start somewhere to go: Python has None in its place."""
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("r" if name == "stdin" else "w", encoding="utf-8"))  # noqa: SIM115


class _Output(io.FileIO):
    """An output stream whose reader (head, a pager) may go: nothing is wrong then, and the answer keeps its status."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.fileno())
            return len(data)


def _outlive_readers() -> None:
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        raw = getattr(stream.buffer, "raw", stream.buffer)
        if stream is not getattr(sys, f"__{name}__") or type(raw) is not io.FileIO:
            continue  # a test reads it
        output: Any = _Output(stream.fileno(), "w", closefd=False)
        made = io.TextIOWrapper(
            output if raw is stream.buffer else io.BufferedWriter(output), stream.encoding, stream.errors,
            line_buffering=stream.line_buffering, write_through=stream.write_through,
        )  # fmt: skip
        setattr(sys, name, made)


def _escape_what_a_stream_cannot_show() -> None:
    """Have characters that the terminal's encoding lacks written as escapes, which JSON has too: names have any."""
    codecs.register_error("vdbg-env-escape", _escaped)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and codecs.lookup(stream.encoding).name != "utf-8":
            stream.reconfigure(errors="vdbg-env-escape")


def _escaped(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return json.dumps(error.object[error.start : error.end])[1:-1], error.end


def _drop_output() -> None:
    """Let what is still buffered go nowhere, or the interpreter fails once more at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _terminated(number: int, _frame: FrameType | None) -> None:
    raise Interrupted("ended by a signal", signal=number)
