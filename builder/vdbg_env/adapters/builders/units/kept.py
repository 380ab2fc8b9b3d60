"""Folders that are made once and kept, so a later call continues where an earlier one stopped."""

from __future__ import annotations

import fcntl
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from vdbg_env.application.ports.build_events import BuildEvent, StepEnded, StepStarted
from vdbg_env.common.errors import EngineFailed

_MARK = ".complete"

Tell = Callable[[BuildEvent], None]


class Kept:
    """The folders below `home`; `tell` receives the start and the end of each step that makes one."""

    def __init__(self, home: Path, tell: Tell) -> None:
        self.home = home
        self.tell = tell

    def folder(self, name: str, title: str, make: Callable[[Path], None]) -> Path:
        """Return the folder of a name, calling `make` on an empty one if it is not complete yet.

        A folder that was left half made is made anew; two processes wait for each other. Raises what `make` raises,
        and EngineFailed when the disk refuses.
        """
        folder = self.home / name
        try:
            with self._locked(name), self.step(name, title, cached=(folder / _MARK).exists()) as needed:
                if needed:
                    shutil.rmtree(folder, ignore_errors=True)
                    folder.mkdir(parents=True)
                    make(folder)
                    (folder / _MARK).touch()
        except OSError as error:
            raise EngineFailed(
                f"cannot write {folder}: {error.strerror or error}",
                cause="the disk is full, or the folder is not yours",
                next_step=f"df -h {self.home}; --work DIR puts everything elsewhere",
            ) from error
        return folder

    @contextmanager
    def step(self, key: str, title: str, *, cached: bool = False) -> Iterator[bool]:
        """Report a step; the block learns whether there is work to do."""
        since = time.monotonic()
        self.tell(StepStarted(key=key, title=title))
        try:
            yield not cached
        except BaseException as error:
            failed = str(error) or type(error).__name__
            self.tell(StepEnded(key=key, cached=False, duration_s=time.monotonic() - since, error=failed))
            raise
        self.tell(StepEnded(key=key, cached=cached, duration_s=0.0 if cached else time.monotonic() - since))

    @contextmanager
    def _locked(self, name: str) -> Iterator[None]:
        lock = self.home / f"{name}.lock"
        lock.parent.mkdir(parents=True, exist_ok=True)
        with lock.open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield
