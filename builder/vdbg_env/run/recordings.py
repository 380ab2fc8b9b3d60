"""Recordings of runs: write one, play it, and take from an earlier run what it has seen already."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

from vdbg_env.common.errors import BadInput, HostNotAble
from vdbg_env.common.files import read_document
from vdbg_env.common.patterns import LineMatcher, Matchers, MatcherSpec, SearchTimer
from vdbg_env.common.resources import SHIPPED_DATA
from vdbg_env.evidence.finding import Ended, EndedBy, Match, Observation
from vdbg_env.record.masking import redact_run
from vdbg_env.record.redactor import Redactor
from vdbg_env.record.run_directory import prepared
from vdbg_env.run.attempt import HOST, Check, InThread, StartedRanks, Stopped, next_data, observation, on_this_host
from vdbg_env.run.placement import Layout, StartedAttempt, StepPlacement
from vdbg_env.runbook.model import Matcher
from vdbg_env.runbook.state import Invocation, placed
from vdbg_env.supervisor.control_files import ENDED

DEEPEST = 64  # folders in folders; a run with its steps, attempts and ranks has five


class Replay:
    """A StepPlacement over a recording: an attempt has the ranks that were recorded; `redactor` has this run's secrets.

    With `step`, that step is played, whichever is asked for.
    """

    def __init__(self, folder: Path, redactor: Redactor | None = None, *, step: str | None = None) -> None:
        self._folder = folder
        self._step = step
        self._redactor = redactor or Redactor()

    def layout(self, invocation: Invocation) -> Layout:
        """Return the recorded ranks; a single one gets the folder that it would have here."""
        ranks = self._ranks(invocation)
        return Layout(ranks=len(ranks)) if ranks[1:] else Layout(folder=f"{HOST}-0")

    def start(self, invocation: Invocation, directory: Path) -> StartedRanks:
        """Copy each recorded rank into the attempt's folder."""
        ranks = self._ranks(invocation)
        if not ranks[1:]:
            folder = directory / f"{HOST}-0"
            return StartedRanks(self.rank(on_this_host(invocation, folder, 0), folder))
        return StartedRanks(*(self._started(invocation, directory / name) for name in ranks))

    def adopt(self, invocation: Invocation, directory: Path) -> StartedRanks | None:
        """Return None: a copy may have been cut short, so it is made again."""
        return None

    def _started(self, invocation: Invocation, folder: Path) -> ReplayedStep:
        host, _, rank = folder.name.rpartition("-")
        folder.mkdir(exist_ok=True)
        number = int(rank) if rank.isdecimal() else 0
        directory = str(folder.resolve())
        filled = placed(invocation, attempt=invocation.attempt, rank=number, host=host, directory=directory)
        return self.rank(filled, folder, recorded=folder.name)

    def _ranks(self, invocation: Invocation) -> tuple[str, ...]:
        """Return the folders of the ranks that were recorded of an attempt."""
        with ExitStack() as opened:
            attempt = self._attempt(invocation, opened)
            return () if attempt is None else _ranks(attempt)

    def rank(self, invocation: Invocation, directory: Path, *, recorded: str | None = None) -> ReplayedStep:
        """Copy a rank of the recorded attempt into the run, the first where none is named."""

        def copy(check: Check) -> None:
            if not self._copied(invocation, directory, recorded, check):
                why = f"the recording {self._folder} holds no step {invocation.step!r}"
                (directory / ENDED).write_text(json.dumps({"by": "not_started", "message": why}))

        return ReplayedStep(invocation, directory.resolve(), copy)

    def _attempt(self, invocation: Invocation, opened: ExitStack) -> int | None:
        """Open the folder of the recorded attempt, or of the last one before it; None where there is none."""
        try:
            step = opened.enter_context(opened_folder(self._folder / "steps" / (self._step or invocation.step)))
            recorded = sorted(int(name) for name in _names(step) if name.isdecimal())
            fitting = [number for number in recorded if number <= invocation.attempt] or recorded[:1]
            return opened.enter_context(opened_folder(str(fitting[-1]), step))
        except (FileNotFoundError, NotADirectoryError, IndexError):
            return None
        except OSError as error:
            if error.errno == errno.ELOOP:
                return None  # a link leads to what no redaction saw
            raise

    def _copied(self, invocation: Invocation, directory: Path, name: str | None, check: Check) -> bool:
        """Copy and redact a rank next to `directory`, then move it there; returns whether it was recorded."""
        with ExitStack() as opened:
            attempt = self._attempt(invocation, opened)
            names = () if attempt is None else _ranks(attempt)
            if not names:
                return False
            rank = opened.enter_context(opened_folder(name or names[0], attempt))
            staged = directory.with_name(f".{directory.name}.new")
            shutil.rmtree(staged, ignore_errors=True)
            try:
                _copy(rank, staged, check)
                redact_run(staged, self._redactor, self._redactor.literals, check=check)
                for path in staged.iterdir():
                    path.replace(directory / path.name)
            finally:
                shutil.rmtree(staged, ignore_errors=True)
        return True


class ReplayedStep:
    """A StartedStep that had ended before it began: `copy` gets its files, in a thread, which a cancel ends.

    Patterns are searched in `wait`: only the main thread can end a search that takes too long.
    """

    def __init__(self, invocation: Invocation, directory: Path, copy: Callable[[Check], None] = lambda _: None) -> None:
        self._invocation = invocation
        self._directory = directory
        self._cancelled = False
        self._found: dict[str, tuple[Match, ...]] = {}
        self._search = _searched(invocation.matchers, directory, self._found)
        self._reading = InThread(partial(self._read, copy))

    def wait(self, timeout_s: float | None = None) -> Observation | None:
        """Return what was recorded, with the runbook's own patterns looked for in it.

        What the workers had in their environment belongs to the machine of the recording and is left out. Raises
        HostNotAble where the files cannot be copied.
        """
        until = float("inf") if timeout_s is None else time.monotonic() + timeout_s
        seen = self._reading.result(timeout_s)
        if seen is None:
            return None
        for _ in () if self._cancelled else self._search:
            if time.monotonic() >= until:
                return None
        if self._cancelled:
            why = "it was not copied and searched to its end, as the run was being ended"
            return replace(seen, ended=Ended(by=EndedBy.CANCEL, message=why), workers=())
        return replace(seen, matched=self._found, workers=())

    def cancel(self, *, firmly: bool = False) -> None:
        """Stop copying."""
        self._cancelled = True
        self._reading.stop()

    def _read(self, copy: Callable[[Check], None], check: Check) -> Observation:
        try:
            with suppress(Stopped):
                copy(check)
            return observation(self._invocation, self._directory, (), check=check)
        except OSError as error:
            raise HostNotAble(
                f"{error.filename or self._directory} cannot be copied: {error.strerror}",
                cause="the disk is full, or one of the two folders is gone",
                next_step="free some space, or choose another --run-dir",
            ) from error


def _searched(matchers: tuple[Matcher, ...], directory: Path, found: dict[str, tuple[Match, ...]]) -> Iterator[None]:
    """Search what was recorded, a block at a time; at the end `found` has what matched."""
    for source, names in (("output", ("stdout", "stderr")), ("kernel-log", ("kernel.log",))):
        lines = [
            LineMatcher(MatcherSpec(name=m.name, pattern=m.pattern, take=m.take))
            for m in matchers
            if m.source == source
        ]
        together = Matchers(lines, SearchTimer())
        for name in names:
            number, offset = 0, 0
            for block in _blocks(directory / name):
                together.look(block, name, number, offset)
                number += block.count(b"\n")
                offset += len(block)
                yield
        found |= {m.spec.name: tuple(Match(**entry._asdict()) for entry in m.kept) for m in lines if m.kept}


def _blocks(path: Path) -> Iterator[bytes]:
    """Yield a file in blocks of whole lines."""
    if not path.is_file():
        return
    with path.open("rb") as file:
        while lines := file.readlines(1 << 20):
            yield b"".join(lines)


def _names(folder: int) -> list[str]:
    return sorted(os.listdir(folder))


def _ranks(attempt: int) -> tuple[str, ...]:
    """Return the folders of an attempt's ranks, by their numbers; a folder of another name comes first."""

    def number(name: str) -> tuple[int, str]:
        rank = name.rpartition("-")[2]
        return (int(rank) if rank.isdecimal() else -1, name)

    return tuple(sorted((name for name in _names(attempt) if _is_folder(name, attempt)), key=number))


def _is_folder(name: str, parent: int) -> bool:
    return stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode)


@contextmanager
def opened_folder(folder: str | Path, parent: int | None = None) -> Iterator[int]:
    """Yield a descriptor of a folder; raises OSError where the last part of its path is a link."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _copy(source: int, target: Path, check: Check, depth: int = 0) -> None:
    """Copy the files and folders of an open folder; links, pipes and what is deeper than any program needs are not."""
    target.mkdir(mode=0o700)
    for name in _names(source):
        check()
        if name == "supervisor.json":
            continue
        mode = os.stat(name, dir_fd=source, follow_symlinks=False).st_mode
        if stat.S_ISDIR(mode):
            if depth < DEEPEST:
                with opened_folder(name, source) as inner:
                    _copy(inner, target / name, check, depth + 1)
        elif stat.S_ISREG(mode):
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            with os.fdopen(os.open(name, flags, dir_fd=source), "rb") as file:
                about = os.fstat(file.fileno())
                if stat.S_ISREG(about.st_mode):  # and not what has taken its place since
                    with (target / name).open("xb") as copy:
                        _copy_data(file.fileno(), copy.fileno(), about.st_size, check)
                    os.utime(target / name, ns=(about.st_atime_ns, about.st_mtime_ns))


def _copy_data(source: int, target: int, size: int, check: Check) -> None:
    """Copy a file with its holes: a sparse core of terabytes takes the room that it has."""
    os.ftruncate(target, size)
    at = 0
    while at < size:
        check()
        at = next_data(source, at, size)
        if at >= size:
            return
        until = os.lseek(source, at, os.SEEK_HOLE)
        if not (data := os.pread(source, min(1 << 20, until - at), at)):
            return  # it was cut short
        at += os.pwrite(target, data, at)


# Takes what another run has seen already in place of running the same once more.


# What makes a failing process leave more behind, or gives it the time to: it changes no failure.
_ARMS = re.compile(
    r"CUDA_COREDUMP_|CUDA_ENABLE_\w*COREDUMP|TORCH_(?:NCCL|FR)_|VLLM_RAY_EXTRA_ENV_|VLLM_WORKER_SHUTDOWN_TIMEOUT_SECONDS$"
    r"|VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS$"
)


_FAULT_HANDLER = "PYTHONFAULTHANDLER"


@dataclass(frozen=True, kw_only=True)
class _Recorded:
    """An attempt of the other run: the command as it was started, redacted, and what it changed."""

    step: str
    folder: Path
    argv: tuple[str, ...]
    changed: Mapping[str, str | None]


class AnsweredSteps:
    """A StepPlacement that lets `placement` start what `run` has no answer to; secrets are those of `redactor`."""

    def __init__(self, run: Path, placement: StepPlacement, redactor: Redactor) -> None:
        self._run = run
        self._placement = placement
        self._redactor = redactor
        self._recorded = tuple(_attempts(run))

    def layout(self, invocation: Invocation) -> Layout:
        """Return the ranks: those that were recorded, where they answer the step."""
        found = self._answer(invocation)
        return self._placement.layout(invocation) if found is None else self._replay(found).layout(invocation)

    def start(self, invocation: Invocation, directory: Path) -> StartedAttempt:
        """Copy what was recorded, or start the attempt; see `StepPlacement.start`."""
        found = self._answer(invocation)
        if found is None:
            return self._placement.start(invocation, directory)
        note = f"taken from step {found.step!r} of run {self._run.name}, and not run again"
        return AnsweredAttempt(self._replay(found).start(invocation, directory), note)

    def adopt(self, invocation: Invocation, directory: Path) -> StartedAttempt | None:
        """Take over an attempt; one that was copied is copied again."""
        return self._placement.adopt(invocation, directory) if self._answer(invocation) is None else None

    def _replay(self, found: _Recorded) -> Replay:
        return Replay(self._run, self._redactor, step=found.step)

    def _answer(self, invocation: Invocation) -> _Recorded | None:
        """Return the attempt that was the same command with the same changes, and left what this one is for."""
        if invocation.attempt != 1:
            return None
        argv = self._redactor.argv(invocation.argv)
        changed = _without_arms(self._redactor.env(invocation.env))
        for one in self._recorded:
            # A stack more than was asked for; where the stack is what is asked for, it must have been written.
            more = {name: value for name, value in one.changed.items() if name in changed or name != _FAULT_HANDLER}
            if (one.argv, more) == (argv, changed) and all(
                not rule.required or any(one.folder.glob(f"*/{rule.glob}")) for rule in invocation.artifacts
            ):
                return one
        return None


class AnsweredAttempt:
    """A StartedAttempt that had ended in another run."""

    def __init__(self, ranks: StartedRanks, note: str) -> None:
        self._ranks = ranks
        self._note = note

    def wait(self, timeout_s: float | None = None) -> tuple[Observation, ...] | None:
        """Return what was seen then, and say where it is from."""
        ranks = self._ranks.wait(timeout_s)
        return ranks and tuple(replace(seen, notes=(self._note, *seen.notes)) for seen in ranks)

    def cancel(self, *, firmly: bool = False) -> None:
        """Stop copying."""
        self._ranks.cancel(firmly=firmly)


def _attempts(run: Path) -> Iterator[_Recorded]:
    """Yield the first attempt of each step that ran a command and whose end was seen."""
    for folder in sorted(run.glob("steps/*/1")):
        for file in sorted(folder.glob("*/argv.json")):
            try:
                if read_document(file.parent / "ended.json")["by"] == EndedBy.CANCEL:
                    break  # it says nothing about the bug
                argv = tuple(read_document(file)["argv"])
                changed = _without_arms(read_document(file.parent / "env.json")["delta"])
            except (OSError, ValueError, KeyError, TypeError, AttributeError):
                break  # a workload can write there
            yield _Recorded(step=folder.parent.name, folder=folder, argv=argv, changed=changed)
            break


def _without_arms(env: Mapping[str, str | None]) -> Mapping[str, str | None]:
    return {name: value for name, value in env.items() if not _ARMS.match(name)}


# Recordings in folders of this machine.


SCHEMA = "vdbg-env/recording/v1"
HEAD = "recording.json"


@dataclass(frozen=True, kw_only=True)
class RecordingHead:
    """Where and when a recording was made; `synthetic` says that it was written by hand, without a GPU."""

    runbook: str
    recorded_on: str
    recorded_at: str
    synthetic: bool
    workload: tuple[str, ...] = ()
    """The command, redacted; where an older recording does not say it, as its first step started it."""


def bundled_recording(runbook: str) -> Path | None:
    """Return the recording that is shipped for a runbook."""
    folder = SHIPPED_DATA / "runbooks" / "recordings" / runbook
    return folder if folder.is_dir() else None


def check_recording_target(folder: Path) -> None:
    """Raise BadInput unless a recording can be written there, best before a run of hours."""
    if os.path.lexists(folder):
        raise BadInput(f"{folder} exists already", next_step="choose another folder for --record")
    if not os.access(folder.absolute().parent, os.W_OK | os.X_OK) or not folder.absolute().parent.is_dir():
        raise BadInput(
            f"no recording can be written to {folder}",
            cause="its parent folder is missing, is not a folder, or belongs to another user",
            next_step="choose another folder for --record",
        )


def read_recording(folder: Path) -> RecordingHead:
    """Return the head of a recording; raises BadInput for a folder that is none."""
    try:
        document = read_document(folder / HEAD)
        if document["schema"] != SCHEMA:
            raise BadInput(f"{folder / HEAD} does not follow {SCHEMA}")
        return RecordingHead(
            runbook=document["runbook"],
            recorded_on=document["recorded_on"],
            recorded_at=document.get("recorded_at", ""),
            synthetic=bool(document.get("synthetic")),
            workload=tuple(document.get("workload", ())) or _first_command(folder),
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadInput(
            f"{folder} is not a recording: its {HEAD} cannot be read",
            next_step="make one with: vdbg-env runbook NAME --record DIR -- COMMAND ...",
        ) from error


def _first_command(folder: Path) -> tuple[str, ...]:
    """Return the command of the step `baseline`, which changes nothing, or () if the recording has none."""
    commands = sorted((folder / "steps" / "baseline" / "1").glob("*/argv.json"))
    return tuple(read_document(commands[0])["argv"]) if commands else ()


def write_recording(run: Path, folder: Path, head: RecordingHead) -> None:
    """Copy the steps of a finished run, which is redacted, to a new folder; raises BadInput where there is one."""
    check_recording_target(folder)
    with prepared(folder) as made:
        shutil.copytree(run / "steps", made / "steps", symlinks=True, ignore=_not_recorded)
        (made / HEAD).write_text(json.dumps({"schema": SCHEMA, **asdict(head)}, indent=1) + "\n")


def _not_recorded(folder: str, names: list[str]) -> list[str]:
    """Name what a recording leaves out: a link may lead to what no redaction saw, and a pipe has no end."""
    paths = [(name, Path(folder, name)) for name in names]
    return [n for n, p in paths if n == "supervisor.json" or p.is_symlink() or not (p.is_file() or p.is_dir())]
