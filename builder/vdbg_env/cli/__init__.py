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
import shlex
import signal
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import click

from vdbg_env import __version__
from vdbg_env.common import console
from vdbg_env.common.errors import ANY_ERROR, BadInput, Interrupted, VdbgError, nearest
from vdbg_env.common.stop import ToldToStop
from vdbg_env.common.writing import refusal_cause

# Command -> its module and function, or its folder, and the line that `--help` shows. A command's module is imported
# only when the command is called: `vdbg-env --version` and shell completion stay fast, whatever other commands need.
COMMANDS: dict[str, tuple[str, str]] = {
    "build": ("build:build_command", "Build a debug image, prove its line info, and only then tag it."),
    "guard": ("guard:guard_command", "Run a production command as it is, and explain its failure."),
    "runbook": ("runbook:runbook_command", "Trace a failure step by step, to kernel, source line and report."),
    "runbooks": ("runbooks:runbooks_command", "List, show, check and explain runbooks."),
    "runs": ("runs:runs_command", "List, show, compare, report and redact recorded runs."),
    "render": ("build:render_command", "Write a debug image's Dockerfile and context, or manifests, into a folder."),
    "bundle": ("build:bundle_command", "Put all that an air-gapped site needs to build into one file."),
    "images": ("images:images_command", "List, show and check the build profiles."),
    "shell": ("container:shell_command", "Open a shell in the debug image."),
    "run": ("container:run_command", "Run a program in the debug image."),
    "doctor": ("container:doctor_command", "Check whether this machine is able, and say what to type where it is not."),
    "dumps": ("dumps:dumps_command", "List, remove and carry away what crashes left."),
    "verify": ("verify:verify_command", "Prove that every cubin with code carries line info."),
    "capture": ("capture:capture_command", "Record the requests that a server gets, to replay them."),
    "triage": ("triage:triage_command", "Name the failure a log tells of, and the line that says so."),
    "core": ("crash:core_command", "Read GPU core dumps: exception, kernel, thread, source line, inline chain."),
    "locate": ("crash:locate_command", "Find the source line and inline chain of an address."),
    "lines": ("lines", "Make, search and carry line tables for code that was shipped without them."),
    "dump": ("crash:dump_command", "Make the processes of a hung program write GPU core dumps."),
}

_OF_OUR_OWN = 128  # the least status that makes `git bisect run` stop


class LazyGroup(click.Group):
    """Imports the module of a command on its first use.

    `modules` has its `module:function` or its folder, and the line that `--help` shows.

    A command that was added to the group itself needs no module.
    """

    def __init__(self, *, modules: Mapping[str, tuple[str, str]], **settings: Any) -> None:
        super().__init__(**settings)
        self._modules = modules

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._modules)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in self.commands or cmd_name not in self._modules:
            return super().get_command(ctx, cmd_name)
        module, _, function = self._modules[cmd_name][0].partition(":")
        path = f"vdbg_env.cli.{module}" if function else f"vdbg_env.cli.{module}.{cmd_name}"
        command: click.Command = getattr(importlib.import_module(path), function or "command")
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in self._modules.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if not name.startswith("-") and name not in self._modules:
            close = nearest(name, self._modules)
            hint = f" Did you mean {close!r}?" if close else ""
            raise click.UsageError(f"No such command {name!r}.{hint}", ctx)
        return super().resolve_command(ctx, args)


@click.group(
    cls=LazyGroup, modules=COMMANDS, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.version_option(__version__, prog_name="vdbg-env")
@click.option(
    "-v", "--verbose", count=True, help="Log what vdbg-env does, on stderr; -vv logs more. Or VDBG_LOG=debug."
)
def group(verbose: int) -> None:
    """From a crashed GPU kernel to its source line.

    \b
    Example:
      vdbg-env doctor                           what this machine can do
      vdbg-env runbook illegal-memory-access    a bundled crash, from its start to a report; needs no GPU
      vdbg-env triage server.log                which failure this is, and the runbook to start
      vdbg-env runbook illegal-memory-access -- vllm serve MODEL
      vdbg-env core /dumps                      exception, kernel, source line, inline chain
    """
    _log(verbose, os.environ.get("VDBG_LOG", ""))


def _log(verbose: int, wanted: str) -> None:
    """Log to stderr from the level asked for; without -v and VDBG_LOG the logging module is not even imported."""
    if not verbose and not wanted:
        return
    import logging

    level = logging.getLevelNamesMapping().get(wanted.upper()) if wanted else None
    if wanted and level is None:
        raise click.UsageError(f"VDBG_LOG={wanted} is not a level: debug, info, warning or error")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s.%(msecs)03d %(name)s: %(message)s", datefmt="%H:%M:%S"))
    logger = logging.getLogger("vdbg_env")
    logger.handlers = [handler]
    logger.setLevel((logging.INFO, logging.DEBUG)[min(verbose, 2) - 1] if verbose else level or logging.INFO)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status; the only place that turns errors into one."""
    signal.signal(signal.SIGTERM, _terminated)
    atexit.register(gc.freeze)  # or Python would look through all objects once more before it ends
    _open_closed_streams()
    _escape_what_a_stream_cannot_show()
    words = sys.argv[1:] if argv is None else argv
    if "--bisect" in itertools.takewhile(lambda word: word != "--", words):
        return _for_git_bisect(words)
    return _status(words)


def _for_git_bisect(argv: Sequence[str]) -> int:
    """Return the status of a run for `git bisect run`, which takes 1 to 127 but 125 for a bad revision.

    A failure of this program itself, a flag it does not know included, is made 128 and more: git then stops.
    """
    try:
        status = _status(argv, failed=_OF_OUR_OWN)
    except Exception:  # a bug in this program names no culprit either
        traceback.print_exc()
        return _OF_OUR_OWN
    return status


def _status(argv: Sequence[str], *, failed: int = 0) -> int:
    """Run a command and return its exit status; that of an error is at least `failed`."""
    try:
        status = group.main(args=list(argv), obj=tuple(argv), prog_name="vdbg-env", standalone_mode=False)
        sys.stdout.flush()
    except ANY_ERROR as error:
        console.show_error(error)
        return max(error.exit_status if isinstance(error, VdbgError) else BadInput.exit_status, failed)
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except click.ClickException as error:
        error.show()
        return max(2, failed)
    except ToldToStop as stop:
        console.note(str(stop))
        return 128 + stop.signal
    except (click.Abort, KeyboardInterrupt):
        console.note("interrupted")
        return 130
    except BrokenPipeError:
        # The reader (head, a pager) went away: nothing is wrong, but Python would complain once more at exit.
        _drop_output()
        return 141
    except MemoryError:
        console.show_error(VdbgError("not enough memory", cause="a limit of this shell (ulimit -v), or a huge input"))
        return max(1, failed)
    except OSError as error:
        # What no command foresaw of the system: a full disk below stdout, a file that went away while it was read.
        place = f"{error.filename}: " if error.filename else ""
        look = f"ls -ld {shlex.quote(str(error.filename))}" if error.filename else "df -h, for a full disk"
        if isinstance(error, FileNotFoundError) and not error.filename:  # no file was named: it is the current folder
            place, look = "the current folder: ", "cd to one that exists"
        what = f"{place}{error.strerror or error}"
        console.show_error(VdbgError(what, cause=refusal_cause(error), next_step=look))
        _drop_output()
        return max(1, failed)
    return status if isinstance(status, int) else 0


def _open_closed_streams() -> None:
    """Give a stream that was closed before the start somewhere to go: Python has None in its place."""
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("r" if name == "stdin" else "w", encoding="utf-8"))  # noqa: SIM115


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
