"""An attempt under its supervisor: follow it to its end, and read what it left in its folder."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, replace
from itertools import count
from pathlib import Path
from typing import Any, Generic, TypeVar

from vdbg_env.common.errors import HostNotAble
from vdbg_env.common.files import NotAFile, opened, parse_json, refusal_cause
from vdbg_env.common.stop import in_background
from vdbg_env.evidence.deaths import root_cause
from vdbg_env.evidence.finding import Artifact, Observation
from vdbg_env.evidence.python_text import stopped_and_running
from vdbg_env.record.masking import mask_artifact
from vdbg_env.record.progress import from_document
from vdbg_env.record.run_directory import disarm
from vdbg_env.run.placement import Layout, StartedStep, StepRunner
from vdbg_env.runbook.model import ArtifactRule
from vdbg_env.runbook.state import Invocation, placed
from vdbg_env.supervisor import control_files, process_tree
from vdbg_env.supervisor.job import Job

LOST = "its supervisor wrote no end: it was killed, or the disk failed; what it had written is kept"
_NOT_SEARCHED = (
    "not all files that it left were searched for secrets, set-uid bits and artifacts, as the run was being ended: "
    "vdbg-env runs redact masks secrets"
)
_DAMAGED = f"its {control_files.ENDED} is not the supervisor's: the workload, or another program, wrote there"
_ENDED = ("by", "code", "signal", "core", "message")
_CHUNK = 1 << 20
_STATES = 1 << 20  # bytes of hang.txt: the states of all processes come before their Python stacks
_LAST_WORDS = 1 << 18  # bytes of stderr in which torchrun's account of many processes is looked for
_LARGEST_ENDING = 16 << 20  # bytes; a supervisor's own is hardly ever larger than the space it sets aside
OWN_FILES = {
    *("stdout", "stderr", "kernel.log", "hang.txt", "argv.json", "env.json", "node.json"),
    *(control_files.ENDED, f"{control_files.ENDED}.tmp", control_files.LOCK, process_tree.LISTED),
    *(f"{stream}.tail{n}" for stream in ("stdout", "stderr", "kernel.log") for n in (0, 1)),
}
# These are not written in every step: where the supervisor had no use for the name, the workload may have had.
_ALWAYS_OURS = OWN_FILES - {"kernel.log", "hang.txt", "node.json"}


Check = Callable[[], None]
Made = TypeVar("Made")


class Stopped(Exception):
    """Raised by a check: what is left to do of the files is not done."""


class InThread(Generic[Made]):
    """Work on files in a thread, as a core of many gigabytes must not keep a cancel waiting.

    The work gets a function to call often, which raises Stopped once `stop` was called and its time is over.
    """

    def __init__(self, work: Callable[[Check], Made]) -> None:
        self._until = float("inf")
        self._made = in_background(lambda: work(self._check))

    def result(self, timeout_s: float | None) -> Made | None:
        """Return what was made, None where that is not done after `timeout_s` seconds; raises what the work raised."""
        try:
            return self._made.result(timeout_s)
        except TimeoutError:
            if self._made.done():  # it was the file system's
                raise
            return None

    def stop(self, within_s: float = 0.0) -> None:
        """Have it stop after so many seconds at the latest."""
        self._until = min(self._until, time.monotonic() + within_s)

    def _check(self) -> None:
        if time.monotonic() >= self._until:
            raise Stopped


def observation(
    invocation: Invocation, directory: Path, literals: tuple[bytes, ...], *, check: Check = lambda: None
) -> Observation:
    """Return what was seen of an attempt that has ended; its artifacts are redacted in place first.

    Without `ended.json` the end was not seen: `engine_lost`, with whatever was written until then. Where `check` raises
    Stopped, the notes say that not all was searched.
    """
    notes = list(_cleared(directory))
    seen = _reported(invocation, directory)
    notes += seen.notes
    artifacts: dict[str, tuple[Artifact, ...]] = {}
    searched = False
    try:
        _search(directory, literals, notes, check)
        searched = True
        for rule in invocation.artifacts:
            artifacts[rule.name] = tuple(_artifacts(rule, directory, notes, check))
    except Stopped:
        notes += [] if searched else [_NOT_SEARCHED]  # the artifact that was being read has its own
    return replace(seen, artifacts={name: found for name, found in artifacts.items() if found}, notes=tuple(notes))


def _search(directory: Path, literals: tuple[bytes, ...], notes: list[str], check: Check) -> None:
    """Take set-uid bits and secrets from what the workload left: there may be a million files. Raises Stopped."""
    if disarmed := disarm(directory, check=check):
        notes.append(f"{disarmed} files had set-uid bits, which were taken away, or were device nodes and removed")
    for path in _foreign_files(directory, check):
        check()
        notes += masked(path, path.relative_to(directory), literals, check)


def masked(path: Path, name: Path, literals: tuple[bytes, ...], check: Check) -> Iterator[str]:
    """Mask the secrets of a file, and yield what is to be noted of it."""
    try:
        looked = mask_artifact(path, literals, check=check)
    except Stopped:
        yield f"{name}: not searched for secrets to its end, as the run was being ended: vdbg-env runs redact does that"
        return
    if looked.masked and path.exists():
        yield f"{looked.masked} secrets masked in {name}"
    if looked.note:
        yield f"{name}: {looked.note}"


def _cleared(directory: Path) -> Iterator[str]:
    """Take away what has one of our names and is not a file: no reader may follow a link or wait at a pipe."""
    for name in sorted(OWN_FILES):
        path = directory / name
        try:
            mode = path.lstat().st_mode
        except FileNotFoundError:
            continue
        if stat.S_ISDIR(mode):  # not removed: it may be of any size and depth
            path.rename(next(new for n in count(1) if not os.path.lexists(new := directory / f"{name}.{n}")))
        elif not stat.S_ISREG(mode):
            path.unlink()
        else:
            continue
        yield f"{name} was not a file: the workload had put something else there, which was taken away"


def _reported(invocation: Invocation, directory: Path) -> Observation:
    """Return what the supervisor wrote about the end; where that was overwritten, the end was not seen."""
    try:
        return _observation(invocation, directory, _ending(directory))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return _observation(invocation, directory, {"by": "engine_lost", "message": _DAMAGED})


def _observation(invocation: Invocation, directory: Path, document: dict[str, Any]) -> Observation:
    """Make an observation of what a supervisor wrote; raises one of many errors where it is not a supervisor's."""
    rank, host = _place(directory)
    stopped, running = stopped_and_running(_first_lines(directory / "hang.txt"))
    return from_document(
        Observation,
        {
            "step": invocation.step,
            "attempt": int(directory.parent.name) if directory.parent.name.isdecimal() else invocation.attempt,
            "rank": rank,
            "host": host,
            "ended": {name: document[name] for name in _ENDED if document.get(name) is not None},
            "duration_s": document.get("duration_s", 0.0),
            "started": document.get("started"),
            "clock": document.get("clock"),
            "matched": document.get("matched", {}),
            "workers": document.get("workers", []),
            "deaths": document.get("deaths", []),
            "output_bytes": sum(s["bytes"] for n, s in document.get("output", {}).items() if n != "kernel.log"),
            "memory_kills": document.get("memory_kills", {}),
            "requests": document.get("requests"),
            "directory": str(directory.relative_to(directory.parents[3])),
            "root_cause": _root_cause(directory),
            "stopped": list(stopped),
            "running": list(running),
            "held_by": document.get("held_by", ""),
            "notes": list(_notes(document)),
        },
    )


def _first_lines(path: Path) -> list[str]:
    """Return the lines in which the supervisor names the processes of a hang; none where there was no hang."""
    try:
        with opened(path) as file:
            return file.read(_STATES).decode("utf-8", "replace").splitlines()
    except (FileNotFoundError, NotAFile):
        return []


def _root_cause(directory: Path) -> dict[str, Any] | None:
    """Return what torchrun says at the end of its output."""
    try:
        with opened(directory / "stderr") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _LAST_WORDS))
            data = file.read(_LAST_WORDS)
    except (FileNotFoundError, NotAFile):
        return None
    found = root_cause(data.decode("utf-8", "replace")) if b"Root Cause" in data else None
    return asdict(found) if found else None


def _ending(directory: Path) -> dict[str, Any]:
    path = directory / control_files.ENDED
    try:
        if path.stat().st_size > _LARGEST_ENDING:
            raise ValueError(f"{path} is too large to be a supervisor's")
        document: dict[str, Any] = parse_json(path.read_bytes())
    except FileNotFoundError:
        return {"by": "engine_lost", "message": LOST}
    return document


def _notes(document: dict[str, Any]) -> Iterator[str]:
    yield from document.get("notes", [])
    for name, stream in document.get("output", {}).items():
        if stream["dropped"]:
            lost = f"{stream['dropped']} of {stream['bytes']} bytes not recorded"
            yield f"{name}: {lost}: the output limit, or too little free disk"
    for done in document.get("hang", []):
        yield f"on hang: {done}"
    for process in document.get("survivors", []):
        yield f"process {process['pid']} ({process['name']}, state {process['state']}) could not be killed"


def _foreign_files(directory: Path, check: Check) -> Iterator[Path]:
    """Yield the regular files below the step's directory that the workload wrote, or may have written."""
    paths = []
    for path in directory.rglob("*"):
        check()
        paths.append(path)
    for path in sorted(paths, key=str):  # paths themselves compare slowly
        if path.is_file() and not path.is_symlink() and str(path.relative_to(directory)) not in _ALWAYS_OURS:
            yield path


def _artifacts(rule: ArtifactRule, directory: Path, notes: list[str], check: Check) -> Iterator[Artifact]:
    found = 0
    for path in sorted(directory.glob(rule.glob)):
        if not path.is_file() or path.resolve() != directory.resolve() / path.relative_to(directory):
            continue  # a link, or below one: what it leads to is not the step's
        if path.name in OWN_FILES:
            continue
        size = path.stat().st_size
        if rule.max_size is not None and size > rule.max_size:
            notes.append(f"{path.name} is left where it is: {size} bytes, {rule.name} may have {rule.max_size}")
            continue
        found += 1
        try:
            digest = digest_of(path, check)
        except Stopped:
            notes.append(f"{path.name} is left where it is: the run was being ended before it was read")
            raise
        yield Artifact(name=rule.name, path=str(path.relative_to(directory.parents[3])), size=size, sha256=digest)
    if rule.required and not found:
        notes.append(f"artifact {rule.name}: nothing matches {rule.glob}")


def digest_of(path: Path, check: Check) -> str:
    """Return the SHA-256 of a file; the holes of a sparse one are not read, which would take six times as long."""
    digest, zeros = hashlib.sha256(), memoryview(bytes(_CHUNK))
    with path.open("rb", buffering=0) as file:
        size, at, data_at = os.fstat(file.fileno()).st_size, 0, 0
        while at < size:
            check()
            if at >= data_at:
                data_at = next_data(file.fileno(), at, size)
            if at < data_at:
                piece: bytes | memoryview = zeros[: min(_CHUNK, data_at - at)]
            elif not (piece := os.pread(file.fileno(), _CHUNK, at)):
                break  # it was cut short
            digest.update(piece)
            at += len(piece)
    return digest.hexdigest()


def next_data(descriptor: int, at: int, size: int) -> int:
    """Return where data follows, at `at` or behind the hole there; `size` where none does."""
    try:
        return os.lseek(descriptor, at, os.SEEK_DATA)
    except OSError as error:
        if error.errno == errno.ENXIO:  # nothing but a hole follows
            return size
        raise


def _place(directory: Path) -> tuple[int, str]:
    """Return rank and host, which the directory is named after (`host-rank`)."""
    host, _, rank = directory.name.rpartition("-")
    return (int(rank), host) if rank.isdecimal() else (0, directory.name)


# Follows an attempt by what its supervisor leaves in the attempt's folder: a lock, a few lines, and the end.
#
# A supervisor alone holds the lock of its folder, and a lock dies with its holder, also across a bind mount: an engine
# that has just started knows as much as the one that started the attempt.


POLL_S = 0.05
READ_LIMIT_S = 1.0  # for the files that a step left behind, which was cancelled while it ran
READ_MORE_S = 0.25  # for those of one that had ended, whose files are being read


class SupervisedStep(ABC):
    """A StartedStep under its supervisor; where that runs, and how it is spoken to, is for each kind to say."""

    def __init__(self, invocation: Invocation, directory: Path, job: Job) -> None:
        self._invocation = invocation
        self._directory = directory
        self._literals = tuple(os.fsencode(x) for x in job.literals)
        self._reading: InThread[Observation] | None = None
        self._cancelled = False

    def wait(self, timeout_s: float | None = None) -> Observation | None:
        """Wait until the supervisor is gone; without an `ended.json` it was lost, and what still runs is killed.

        Raises HostNotAble when the record can no longer be read; the step has then been ended.
        """
        try:
            return self._waited(timeout_s)
        except OSError as error:
            with suppress(OSError):
                self.cancel()
            self._over()
            raise HostNotAble(
                f"{error.filename or self._directory} cannot be read: {error.strerror}",
                cause=refusal_cause(error),
                next_step="check that nothing of the step still runs; when that is over, continue with --resume",
            ) from error

    def _waited(self, timeout_s: float | None) -> Observation | None:
        until = None if timeout_s is None else time.monotonic() + timeout_s
        while self._runs():
            left = None if until is None else until - time.monotonic()
            if left is not None and left <= 0:
                return None
            self._sleep(left)
        if self._reading is None and not has_ended(self._directory):
            self._lost()
        if self._reading is None:
            self._over()
            self._reading = InThread(
                lambda check: observation(self._invocation, self._directory, self._literals, check=check)
            )
            if self._cancelled:
                self._reading.stop(READ_LIMIT_S)
        seen = self._reading.result(None if until is None else max(0.0, until - time.monotonic()))
        return None if seen is None else self._completed(seen)

    def cancel(self, *, firmly: bool = False) -> None:
        """Have the tree ended; of a step that has ended, stop reading what it left behind. Does not wait."""
        self._cancelled = True
        if self._reading is None:
            self._ask_to_end(firmly=firmly)
        else:
            self._reading.stop(0.0 if firmly else READ_MORE_S)

    @abstractmethod
    def _ask_to_end(self, *, firmly: bool) -> None:
        """Ask the supervisor to end the tree; two signals at once are firm, as two of a kind may merge into one."""

    def _runs(self) -> bool:
        """Return whether a supervisor lives, by what the workload cannot write."""
        return control_files.is_held(str(self._directory))

    @abstractmethod
    def _lost(self) -> None:
        """Kill what a lost supervisor left."""

    @abstractmethod
    def _over(self) -> None:
        """Take away what held the supervisor, which has written the end or is lost."""

    def _sleep(self, left: float | None) -> None:
        """Sleep until the supervisor ends, or for a while where that cannot be waited for."""
        time.sleep(POLL_S if left is None else min(left, POLL_S))

    def _completed(self, seen: Observation) -> Observation:
        """Add to what the folder shows what only the kind of step knows."""
        return seen


def has_ended(directory: Path) -> bool:
    """Whether the supervisor has written the end."""
    return (directory / control_files.ENDED).exists()


# An attempt of one rank.


HOST = "localhost"


class OneRank:
    """A StepPlacement of one rank that `runner` starts."""

    def __init__(self, runner: StepRunner) -> None:
        self._runner = runner

    def layout(self, invocation: Invocation) -> Layout:
        """Return one rank, whose folder is known beforehand."""
        return Layout(folder=f"{HOST}-0")

    def start(self, invocation: Invocation, directory: Path) -> StartedRanks:
        """Start the rank; see `StepPlacement.start`."""
        folder = directory / f"{HOST}-0"
        return StartedRanks(self._runner.start(on_this_host(invocation, folder, 0), folder))

    def adopt(self, invocation: Invocation, directory: Path) -> StartedRanks | None:
        """Take over the rank; see `StepPlacement.adopt`."""
        folder = directory / f"{HOST}-0"
        step = self._runner.adopt(on_this_host(invocation, folder, 0), folder)
        return None if step is None else StartedRanks(step)


class StartedRanks:
    """A StartedAttempt of ranks that are waited for one after the other."""

    def __init__(self, *steps: StartedStep) -> None:
        self._steps = steps
        self._seen: list[Observation] = []

    def wait(self, timeout_s: float | None = None) -> tuple[Observation, ...] | None:
        """Return what was seen of each rank, once all have ended."""
        until = None if timeout_s is None else time.monotonic() + timeout_s
        for step in self._steps[len(self._seen) :]:
            seen = step.wait(None if until is None else max(0.0, until - time.monotonic()))
            if seen is None:
                return None
            self._seen.append(seen)
        return tuple(self._seen)

    def cancel(self, *, firmly: bool = False) -> None:
        """Have all ranks ended."""
        for step in self._steps:
            step.cancel(firmly=firmly)


def on_this_host(invocation: Invocation, folder: Path, rank: int) -> Invocation:
    """Return the invocation of one rank, with its number, host and folder filled in."""
    return placed(invocation, attempt=invocation.attempt, rank=rank, host=HOST, directory=str(folder.resolve()))
