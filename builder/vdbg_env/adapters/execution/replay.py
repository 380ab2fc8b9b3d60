"""Runs nothing: takes what each step gave from a recording, an earlier run's folder or one written by hand.

A recording is `recording.json` next to `steps/<id>/<attempt>/<host>-<rank>/`. By hand, an attempt needs `ended.json`
with `by` and `code`, and what it printed as `stdout`; matches are looked for anew, so a runbook's own patterns count.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from vdbg_env.adapters.execution.attempt_result import Check, InThread, Stopped, next_data, observation
from vdbg_env.adapters.execution.required_literals import needles
from vdbg_env.common.errors import HostNotAble
from vdbg_env.common.nesting import DEEPEST, opened_folder
from vdbg_env.evidence.observation import Ended, EndedBy, Match, Observation
from vdbg_env.record.redaction.redact_run import redact_run
from vdbg_env.record.redaction.redaction import Redactor
from vdbg_env.runbook.invocation import Invocation
from vdbg_env.runbook.model import Matcher
from vdbg_env.supervisor.job import MatcherSpec
from vdbg_env.supervisor.output.matching import LineMatcher, Matchers, SearchTimer
from vdbg_env.supervisor.state.result_file import NAME as ENDED


class Replay:
    """A StepRunner that plays a recording; `redactor` has the secrets of this run.

    With `step`, that step is played, whichever is asked for.
    """

    def __init__(self, folder: Path, redactor: Redactor | None = None, *, step: str | None = None) -> None:
        self._folder = folder
        self._step = step
        self._redactor = redactor or Redactor()

    def ranks(self, invocation: Invocation) -> tuple[str, ...]:
        """Return the folders of the ranks that were recorded of an attempt."""
        with ExitStack() as opened:
            attempt = self._attempt(invocation, opened)
            return () if attempt is None else _ranks(attempt)

    def start(self, invocation: Invocation, directory: Path, *, recorded: str | None = None) -> ReplayedStep:
        """Copy a rank of the recorded attempt into the run, the first where none is named; see `StepRunner.start`."""

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
                redact_run(staged, self._redactor, self._redactor.finder.known.values, check=check)
                for path in staged.iterdir():
                    path.replace(directory / path.name)
            finally:
                shutil.rmtree(staged, ignore_errors=True)
        return True

    def adopt(self, invocation: Invocation, directory: Path) -> ReplayedStep | None:
        """Take over an attempt whose files were copied whole; `ended.json` is not enough to tell, so copy again."""
        return None


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
            LineMatcher(MatcherSpec(name=m.name, pattern=m.pattern, take=m.take, needles=needles(m.pattern)))
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
