"""What is read from files: binaries and logs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vdbg_env.engine.targets import Targets

if TYPE_CHECKING:
    from vdbg_env.application.ports.files import LogSource
    from vdbg_env.crash.files import BinarySource


def binary_source(*, built: bool = False) -> BinarySource:
    return Targets(built=built)


def log_source() -> LogSource:
    from vdbg_env.adapters.files.log_files import LogFiles

    return LogFiles()
