"""`vdbg-env runbook` and `guard`: trace a failure to its source line, or run a production command and explain its end.

What a person sees of a run, and the answers to its questions, are here too.
"""

from __future__ import annotations

import os
import select
import shutil
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import click
from click.core import ParameterSource

from vdbg_env.cli.places import ALL, CONTAINER, JOB, SECTIONS, SLURM, PlaceFlags
from vdbg_env.common import console
from vdbg_env.common.console import duration, json_text, note, printable, shows_colour
from vdbg_env.common.errors import BadInput, NotGuarded
from vdbg_env.common.files import open_file, write_whole
from vdbg_env.common.flags import Option, Sectioned, refuse, takes, takes_some
from vdbg_env.engine.request import read_flags
from vdbg_env.image.settings import CAPABILITIES, RunSettings, StepContainer, parse_size
from vdbg_env.record.event_log import Event
from vdbg_env.record.progress import Progress, ranks_of
from vdbg_env.record.run_directory import GUARD, RunDirectory, RunHead, part_of
from vdbg_env.record.runs import LATEST, RUNS_VARIABLE, find_run, runs_home
from vdbg_env.report import as_terminal, model, runbooks
from vdbg_env.report.assemble import typed_outside
from vdbg_env.report.model import ended
from vdbg_env.run import guard
from vdbg_env.run.begin import ContainerRequest, RunbookRequest, plug_in, recorded_placement
from vdbg_env.run.guarded import Guarded, GuardFlags, core_room, forget_old_runs
from vdbg_env.run.history import named_by_guard
from vdbg_env.run.library import runbook_library
from vdbg_env.run.placement import PlacementRequest, Scratch
from vdbg_env.run.recordings import read_recording
from vdbg_env.run.session import RunView, Session
from vdbg_env.runbook.state import AskPerson, StepRecord

_LOOK_S = 0.25  # how long a Ctrl-C may wait to be seen


class AtTerminal:
    """Asks on the error stream and reads one line; no answer in time is none, nor is one that was `interrupted`."""

    def __init__(self, interrupted: Callable[[], bool]) -> None:
        self._interrupted = interrupted

    def ask(self, question: AskPerson) -> str | None:
        """Return the choice made, or None after the question's time."""
        choices = ", ".join(f"[{c}]" if c == question.default else c for c in question.choices)
        while True:
            prompt = f"\n{question.prompt}\n  {choices} ({question.timeout_s:g} s): "
            print(printable(prompt, keep="\n"), end="", file=sys.stderr, flush=True)
            if not self._has_answer(question.timeout_s):
                if not self._interrupted():
                    print(f"no answer, taking {question.default}", file=sys.stderr)
                return None
            line = sys.stdin.readline()
            answer = line.strip()
            if answer in question.choices:
                return answer
            if not answer:
                return None
            print(f"{answer!r} is none of them", file=sys.stderr)

    def _has_answer(self, timeout_s: float) -> bool:
        """Wait for a line; signals are only noted, and would not end one long wait."""
        until = time.monotonic() + timeout_s
        while not self._interrupted() and (left := until - time.monotonic()) > 0:
            if select.select([sys.stdin], [], [], min(left, _LOOK_S))[0]:
                return not self._interrupted()
        return False


class Nobody:
    """Answers nothing: each question takes its default at once."""

    def ask(self, question: AskPerson) -> str | None:
        """Return None."""
        return None


# Print the progress of a run on the error stream: one line per event, and what a step that runs waits for.
#
# On a terminal that is one line, written anew each second; elsewhere a line after a minute, and then every five.


_LIVE_S = 1.0
_FIRST_S, _THEN_S = 60.0, 300.0
_TAIL = 4096  # bytes of the output in which its last line is looked for
_LINE_SHOWN = 160  # characters of it where there is no terminal
WAITS = "waits.txt"  # what a supervisor says that it waits for, in the folder of a rank
_OF_ITSELF = "its end"


class RunProgress:
    """A listener of a run's events, which also shows what the running step waits for."""

    def __init__(self) -> None:
        self._directory = Path()
        self._shown = 0
        self._step = ""  # the one that runs, with its attempt
        self._folder = Path()
        self._began = self._began_s = self._due = 0.0
        self._live = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self._written = False

    def of_run(self, directory: Path) -> Self:
        """Take the folder of the run."""
        self._directory = directory
        return self

    def notice(self, text: str) -> None:
        """Print one line that is no event."""
        self._erase()
        note(text)

    def waits(self) -> None:
        """Show how long the step has run, what it waits for, and the last line that the workload printed."""
        now = time.monotonic()
        if not self._step or now < self._due:
            return
        self._due = now + (_LIVE_S if self._live else _THEN_S)
        passed, what = now - self._began, _said(self._folder) or _OF_ITSELF
        text = f"{self._step}: {duration(passed)}, waits for {what}"
        last = printable(_last_line(self._folder))
        if not self._live:
            last = last if len(last) <= _LINE_SHOWN else f"{last[:_LINE_SHOWN]}..."
            self._print(self._began_s + passed, f"{text}; it prints: {last}" if last else text)
            return
        line = printable(f"{text} | {last}" if last else text)
        width = shutil.get_terminal_size((100, 40)).columns - 1
        print(f"\r\x1b[K{line[:width]}", end="", file=sys.stderr, flush=True)
        self._written = True

    def __call__(self, event: Event, progress: Progress) -> None:
        """Print an event."""
        self._erase()
        self._follow(event)
        match event.kind:
            case "run_started":
                self._line(event, f"run {progress.state.runbook.name}, kept in {self._directory}")
            case "run_resumed":
                self._line(event, f"continuing {self._directory}, {len(progress.visits)} steps done")
                self._shown = len(progress.visits)
            case "attempt_started":
                title = progress.state.runbook.step(event.data["step"]).title
                self._line(event, f"{event.data['step']} #{event.data['attempt']}: {title}")
            case "attempt_ended":
                for one in (last := ranks_of(event)):
                    rank = f" rank {one.rank}" if last[1:] else ""
                    text = f"{ended(one.ended)} after {duration(one.duration_s)}"
                    self._line(event, f"{one.step} #{one.attempt}{rank}: {text}")
            case "step_finished":
                for visit in progress.visits[self._shown :]:
                    self._line(event, f"{visit.step.id} -> {_outcome(visit.record)}")
            case "branched":
                self._line(event, f"continuing with runbook {event.data['runbook']}")
            case "run_interrupted":
                self._line(event, f"{event.data.get('why') or 'interrupted'}; what was seen is kept")
        self._shown = len(progress.visits)

    def _follow(self, event: Event) -> None:
        """Take note of the attempt that runs now, or that none does."""
        self._step = ""
        if event.kind == "attempt_started":
            self._step = f"{event.data['step']} #{event.data['attempt']}"
            self._folder = self._directory / event.data["directory"]
            self._began, self._began_s = time.monotonic(), event.elapsed_s
            self._due = self._began + (_LIVE_S if self._live else _FIRST_S)

    def _erase(self) -> None:
        if self._written:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
            self._written = False

    def _line(self, event: Event, text: str) -> None:
        self._print(event.elapsed_s, text)

    def _print(self, elapsed_s: float, text: str) -> None:
        print(f"[{elapsed_s:8.1f} s] {printable(text)}", file=sys.stderr, flush=True)


def _said(folder: Path) -> str:
    """Return what a supervisor of the attempt says that it waits for, the latest of them; empty where none does."""
    return next((text for text in _tails(folder, WAITS) if text), "")


def _last_line(folder: Path) -> str:
    """Return the last line that is not empty of what any rank printed last."""
    for text in _tails(folder, "std*"):
        lines = [line.strip() for line in text.replace("\r", "\n").splitlines() if line.strip()]
        if lines:
            return lines[-1]
    return ""


def _tails(folder: Path, pattern: str) -> list[str]:
    """Return the ends of the files of that name in the attempt's folder and in those of its ranks, newest first."""
    found = []
    for path in (*folder.glob(pattern), *folder.glob(f"*/{pattern}")):
        try:
            with os.fdopen(open_file(path, os.O_RDONLY), "rb") as file:  # the workload may have put a pipe there
                size = os.fstat(file.fileno()).st_size
                file.seek(max(0, size - _TAIL))
                found.append((os.fstat(file.fileno()).st_mtime, file.read(_TAIL).decode("utf-8", "replace")))
        except OSError:
            continue  # it was removed since, or is no file
    return [text for _, text in sorted(found, reverse=True)]


def _outcome(record: StepRecord) -> str:
    if record.skipped_because:
        return f"skipped: {record.skipped_because}"
    if record.choice:
        return f"answered {record.choice}"
    return f"{record.outcome}: {record.message}" if record.message else str(record.outcome)


# Run a request, and print its report.


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
        click.echo(model.report_json(done.report), nl=False)
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


# Turn the flags of a place into requests.


def container_request(context: click.Context, flags: PlaceFlags) -> ContainerRequest | None:
    """Turn the flags into a request for containers; None where steps run here.

    Raises BadInput for a wrong value, and a usage error for a flag of containers where none are requested.
    """
    on = flags.on or ("docker" if flags.image else "local")
    if on != "docker":
        on_slurm = "containers here; pyxis takes --slurm-arg=--container-image=IMAGE, else start one in COMMAND"
        refuse(context, ("image", *CONTAINER), on_slurm if on == "slurm" else "steps in containers: add --on docker")
        return None
    run = read_flags(flags)
    place = run.settings
    return ContainerRequest(
        run=replace(run, settings=replace(place, mounts=(), user=None, folder=None)),
        mounts=place.mounts,
        user=place.user,
        memory=parse_size(flags.memory, "--memory") if flags.memory else None,
        folder=place.folder,
    )


def placement_request(context: click.Context, flags: PlaceFlags) -> PlacementRequest | None:
    """Turn the flags into a request; None where a step has one rank here.

    Raises a usage error for a flag that has no effect there.
    """
    of_cluster = flags.on not in {None, "local", "docker"}
    if not of_cluster:
        refuse(context, SLURM, "ranks of Slurm: add --on slurm")
    if not flags.submit:
        refuse(context, JOB, "a job that is queued: add --submit")
    if not flags.scratch:
        refuse(context, {"scratch_limit"}, "the dumps of a node's own folder: add --scratch DIR")
    if of_cluster:
        return PlacementRequest(
            on=flags.on or "slurm",
            ranks=flags.ranks,
            nodes=flags.nodes,
            arguments=flags.slurm_arguments,
            scratch=_scratch(flags),
        )
    if flags.nodes:
        raise click.UsageError("--nodes is for ranks of a cluster: add --on slurm")
    if flags.on == "docker" and flags.ranks:
        raise click.UsageError("a step has one container: leave out --ranks, or --on docker")
    return PlacementRequest(ranks=flags.ranks) if flags.ranks else None


def _scratch(flags: PlaceFlags) -> Scratch | None:
    if flags.scratch is None:
        return None
    if not flags.scratch.is_absolute():
        raise click.UsageError(f"--scratch {flags.scratch}: it is a folder of each node, so give its whole path")
    return Scratch(folder=str(flags.scratch), limit=parse_size(flags.scratch_limit, "--scratch-limit"))


# The flags of a run's place, from its record: a run that begins from it takes over those that are not given.


def take_over(context: click.Context, head: RunHead, place: PlaceFlags) -> PlaceFlags:
    """Return the flags with those of a run's place that were not given, which count as given from now on.

    Nothing is taken over where another place is named. Raises BadInput where the record keeps no value of a variable,
    and where the ranks were pods and no place is named.
    """
    if head.in_pods and (place.on or place.image):
        return place
    recorded = _recorded(head)
    on = place.on or ("docker" if place.image and recorded["on"] in {"local", "slurm"} else recorded["on"])
    if on != recorded["on"]:
        return place
    variables = dict(recorded.pop("variables", ()))
    taken = {
        name: value
        for name, value in recorded.items()
        if value not in (None, ()) and context.get_parameter_source(name) is ParameterSource.DEFAULT
    }
    if variables:
        taken["variables"] = (*_variables(head, variables, place.variables), *place.variables)
    for name in taken:
        context.set_parameter_source(name, ParameterSource.DEFAULT_MAP)
    return replace(place, **taken)


def _variables(head: RunHead, recorded: Mapping[str, str], given: tuple[str, ...]) -> tuple[str, ...]:
    again = {text.partition("=")[0] for text in given}
    kept = {name: value for name, value in recorded.items() if name not in again}
    for name, value in kept.items():
        if "[redacted" in value or value == "[not kept]":
            raise BadInput(
                f"the record of run {head.run!r} holds no secrets, and its variable {name} had one",
                next_step=f"give it again, from your own environment: --env {name}",
            )
    return tuple(f"{name}={value}" for name, value in kept.items())


def _recorded(head: RunHead) -> dict[str, Any]:
    """Return the flags that a run's place would be named by; its image by the permanent id."""
    if head.container:
        container = part_of(head, "container", StepContainer)
        return {
            "on": "docker",
            **_of_settings(container.settings),
            "image": str(head.image.get("id", "")),
            "mounts": tuple(f"{m.source}:{m.target}:{'ro' if m.read_only else 'rw'}" for m in container.mounts),
            "dumps": container.settings.dumps.source if container.settings.dumps else "none",
            "user": container.user,
            "memory": _size(container.memory),
            "stop_grace": container.settings.stop_grace_s,
        }
    placement = recorded_placement(head)
    if placement is None:
        return {"on": "local"}
    return {
        "on": placement.on,
        "ranks": placement.ranks,
        "nodes": placement.nodes,
        "slurm_arguments": placement.arguments,
        **({"scratch": Path(placement.scratch.folder), "scratch_limit": _size(placement.scratch.limit)}
           if placement.scratch else {}),
    }  # fmt: skip


def _of_settings(settings: RunSettings) -> dict[str, Any]:
    gpu = settings.gpu
    return {
        "variables": settings.env,
        "gpu": f"{gpu.by}:{','.join(gpu.devices)}" if gpu.devices else gpu.by,
        "ipc": settings.ipc,
        "shm_size": _size(settings.shm_bytes),
        "capabilities": tuple(name for name in settings.capabilities if name not in CAPABILITIES),
        "seccomp": settings.seccomp,
    }


def _size(bytes_: int | None) -> str | None:
    return None if bytes_ is None else f"{bytes_}b"


# `vdbg-env runbook`: turn the flags into a request, then show its plan or run it.


def _names(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    return [entry.name for entry in runbook_library().entries if entry.name.startswith(incomplete)]


# What `--help` lists; `--help-all` has the rest.
_EVERYDAY = {"inputs", "plan", "resume", "from_run", "batch", "json", "on", "image", "nodes", "ranks"}


@click.command("runbook", cls=Sectioned, sections=SECTIONS, everyday=_EVERYDAY)
@click.argument("name", required=False, metavar="NAME", shell_complete=_names)
@click.argument("argv", nargs=-1, type=click.UNPROCESSED, metavar="-- COMMAND...")
@takes(request=RunbookRequest)
@takes_some(PlaceFlags, ALL)
@click.pass_context
def runbook_command(
    context: click.Context, /, name: str | None, argv: tuple[str, ...], request: RunbookRequest, **flags: Any
) -> int:
    """Rerun a failing command step by step, until its kernel, source line and cause are clear.

    Steps run on this machine, in containers of IMAGE, or on Slurm; the record stays here. Without COMMAND, the workload
    of ./vdbg.yaml runs, or else the bundled sample, which is replayed where there is no GPU.

    \b
    Example:
      vdbg-env runbook illegal-memory-access -- vllm serve MODEL
      vdbg-env runbook illegal-memory-access --image IMAGE -- vllm serve MODEL
      vdbg-env runbook illegal-memory-access --plan -- python offline.py
      git bisect run vdbg-env runbook host-crash --bisect --batch -- ./repro.sh

    Exit status: 0 nothing found, 3 an error found, 4 warnings only, 124 out of time, 125 inconclusive. With --bisect
    1, 0 and 125, as git expects.
    """
    place, resume, replay = PlaceFlags(**flags), request.resume, request.replay
    if request.record and replay:
        raise click.UsageError("--record and --replay exclude one another")
    if request.from_run and (replay or resume):
        raise click.UsageError("--from begins a run: it excludes --replay and --resume")
    if request.pseudonyms and replay:
        raise click.UsageError("a recording is replayed as it is: give --pseudonyms when it is made")
    if replay:
        if container_request(context, place):
            raise click.UsageError("--replay runs nothing, so there is no --image to run it in")
        if placement_request(context, place):
            raise click.UsageError("--replay has the ranks of its recording: leave out --on, --nodes and --ranks")
        recorded = read_recording(replay)
        name, argv = name or recorded.runbook, argv or recorded.workload
    if name is None and resume is None and request.from_run is None:
        raise click.UsageError("Missing argument 'NAME': vdbg-env runbooks list")
    if request.from_run:
        known = find_run(request.from_run, os.environ)
        name = name or _runbook_of(known)
        here = os.getcwd()  # noqa: PTH109 - as the shell names it
        request = replace(request, typed_in=here)
        if request.from_run == LATEST:  # this run is soon the latest one
            request = replace(request, from_run=known.path.name)
        place = take_over(context, known.read_head(), place)
    if resume and place.on is None and find_run(resume, os.environ).read_head().placement.get("on") == "slurm":
        place = replace(place, on="slurm")
    request = replace(
        request,
        runbook=name or find_run(resume or "", os.environ).read_head().runbook,
        argv=argv,
        container=container_request(context, place),
        placement=placement_request(context, place),
    )
    if place.submit:
        return _submit(request, place)
    if request.plan:
        return _show_plan(request)
    on = request.placement.on if request.placement and not replay else "local"
    if context.obj and on != "local" and (far := plug_in(on)).needs_allocation(os.environ):
        return far.allocate(request, context.obj, note)
    return run(request)


def _submit(request: RunbookRequest, place: PlaceFlags) -> int:
    if request.resume or request.replay or request.record or request.bisect:
        raise click.UsageError("--submit queues a new run: leave out --resume, --replay, --record and --bisect")
    on = request.placement.on if request.placement else "local"
    text = plug_in(on).queue(
        request, setup=str(place.setup or ""), arguments=place.submit_arguments, show_only=request.plan, say=note
    )
    click.echo(text, nl=False)
    return 0


def _runbook_of(run: RunDirectory) -> str:
    """Return the runbook to run from a run: the one that its report leads to where it is a guard's, else its own."""
    runbook = run.read_head().runbook
    named = named_by_guard(run) if runbook == GUARD else runbook
    if named is None:
        raise click.UsageError(f"{run.path.name} is a guard's run, which names no runbook: vdbg-env runbooks list")
    return named


def _show_plan(request: RunbookRequest) -> int:
    plan = Session(request, note).plan()
    console.show(json_text(runbooks.plan_json(plan)) if request.json else runbooks.as_text(plan))
    return 0


# `vdbg-env guard`.


_SAY_S, _TOLD_S = 60.0, 1.0  # how long stderr may be full, and how long after a request to stop
_TERMINATION_LOG = "/dev/termination-log"


class _Setting(Option):
    """An option that also has a variable. A wrong value there is left out: guard keeps no command from starting."""

    def process_value(self, ctx: click.Context, value: Any) -> Any:
        """Return the value as its type has it, the default where the environment has a wrong one."""
        try:
            return super().process_value(ctx, value)
        except (click.UsageError, BadInput) as error:
            if ctx.get_parameter_source(self.name or "") is not ParameterSource.ENVIRONMENT:
                raise
            said = error.what if isinstance(error, BadInput) else error.message
            console.note(f"guard: VDBG_GUARD_{(self.name or '').upper()} is left out, the default counts: {said}")
            return super().process_value(ctx, self.get_default(ctx))


_EVERYDAY_GUARD = {"runs", "keep", "hang_after", "core", "exit_status_on_crash", "hook", "print_environment"}


@click.command("guard", cls=Sectioned, everyday=_EVERYDAY_GUARD, context_settings={"auto_envvar_prefix": "VDBG_GUARD"})
@click.argument("argv", nargs=-1, type=click.UNPROCESSED, metavar="[--] COMMAND...")
@takes(option=_Setting, flags=GuardFlags)
def guard_command(argv: tuple[str, ...], flags: GuardFlags) -> int:
    """Run COMMAND unchanged, and explain its crash or hang.

    Output, signals and exit status pass through. After a crash or hang, its logs, GPU cores and a report are in the
    folder of runs, and one line of JSON is on stderr. Every option has a variable too, such as VDBG_GUARD_HOOK for
    --hook.

    \b
    Example:
      vdbg-env guard -- vllm serve MODEL
      vdbg-env guard --exit-status-on-crash 70 -- vllm serve MODEL
      vdbg-env guard --hook 'cat >> /var/log/crashes.jsonl' -- python offline.py

    Exit status: that of COMMAND; 128 plus the number of a signal; 124 if it hung and returned 0 when ended; 126 or 127
    if it cannot be started; 1 instead of 0 if its output was lost on a full disk. `vllm serve` returns 0 after many
    crashes: --exit-status-on-crash gives each crash and hang its own status.
    """
    if not argv and not flags.print_environment:
        raise click.UsageError("Missing argument '[--] COMMAND...'.")
    if flags.print_environment:
        for line in _guard(argv, flags).environment():
            click.echo(printable(line))
        return 0
    try:
        guarding = _guard(argv, flags)
        forget_old_runs(runs_home(guarding.variables), flags.keep - 1, flags.keep_size)
        with guarding.command:
            return guarding.run()
    except NotGuarded:
        raise
    except Exception as error:  # whatever is wrong with what guards it, the command is to be started
        raise NotGuarded(getattr(error, "what", "") or f"{type(error).__name__}: {error}") from error


def _guard(argv: tuple[str, ...], flags: GuardFlags) -> guard.Guard:
    if flags.termination_log is None and os.access(_TERMINATION_LOG, os.W_OK):
        flags = replace(flags, termination_log=Path(_TERMINATION_LOG))
    command = Guarded(flags)
    variables = {**os.environ, **({RUNS_VARIABLE: str(flags.runs)} if flags.runs else {})}
    home = runs_home(variables)
    view = RunView(interactive=False, listener=lambda _: lambda *_: None, person=lambda _: Nobody())
    return guard.Guard(
        argv=argv,
        variables=variables,
        view=view,
        command=command,
        say=_Stderr(command),
        room=lambda: core_room(home, flags.disk_floor, whole=flags.core_size == "full"),
    )


class _Stderr:
    """Writes lines after the command's own output, where that can still be written: a pipe may be full for ever."""

    def __init__(self, command: Guarded) -> None:
        self._command = command
        self._begun = False

    def __call__(self, line: str) -> None:
        """Write a line, the first one apart from an unfinished line of the command."""
        apart = not self._begun and self._command.unfinished_line()
        self._begun = self._command.started
        text = "\n" * apart + printable(line) + "\n"
        thread = threading.Thread(target=_written, args=(text.encode(),), daemon=True)
        try:
            thread.start()
        except RuntimeError:  # no room for one
            _written(text.encode())
            return
        until = time.monotonic() + _SAY_S
        while thread.is_alive() and time.monotonic() < until - (_SAY_S - _TOLD_S) * self._command.told_to_stop():
            thread.join(0.1)


def _written(data: bytes) -> None:
    """Write past the buffer of stderr: one that is full would keep this process from ending."""
    with suppress(OSError, ValueError):
        write_whole(sys.stderr.fileno(), data)
