"""What is read from files: binaries, cores, logs, sources."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from vdbg_env.adapters.docker.binary_targets import Targets
from vdbg_env.adapters.files.source_lines import SourceFiles

if TYPE_CHECKING:
    from vdbg_env.application.ports.files import BinarySource, CoreFiles, LogSource, SourceText


def binary_source(*, built: bool = False) -> BinarySource:
    return Targets(built=built)


def core_files() -> CoreFiles:
    from vdbg_env.adapters.files.core_files import CoreFilesOnDisk

    return CoreFilesOnDisk()


def log_source() -> LogSource:
    from vdbg_env.adapters.files.log_files import LogFiles

    return LogFiles()


def source_text(roots: Sequence[str], mappings: Sequence[tuple[str, str]]) -> SourceText:
    return SourceFiles(roots, mappings)
