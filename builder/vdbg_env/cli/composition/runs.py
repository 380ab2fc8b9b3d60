"""The runbooks that a command can name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from vdbg_env.common.clock import Clock, SystemClock

if TYPE_CHECKING:
    from vdbg_env.run.library import RunbookLibrary


def clock() -> Clock:
    return SystemClock()


def runbook_names() -> frozenset[str]:
    from vdbg_env.run.library import RunbookFiles

    return frozenset(entry.name for entry in RunbookFiles().runbooks())


def runbook_library(files: Sequence[Path] = ()) -> RunbookLibrary:
    from vdbg_env.run.builtins import catalogue
    from vdbg_env.run.library import RunbookFiles, RunbookLibrary

    return RunbookLibrary(RunbookFiles(files), catalogue)
