"""Makes the real engines; nothing else imports them, so every test may bring its own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from vdbg_env.application.ports import BinarySource, CoreFiles, LogSource, ProgramRunner, SourceText
from vdbg_env.image.context import BuildContext


def binary_source() -> BinarySource:
    """Return the source of binaries: files, folders and wheels, then images."""
    from vdbg_env.engines.targets import Targets

    return Targets()


def programs() -> ProgramRunner:
    """Return the runner of this machine's helper programs."""
    from vdbg_env.engines.programs import Programs

    return Programs()


def log_source() -> LogSource:
    """Return what finds and reads logs."""
    from vdbg_env.engines.log_files import LogFiles

    return LogFiles()


def core_files() -> CoreFiles:
    """Return the opener of GPU core dumps."""
    from vdbg_env.engines.core_files import CoreFilesOnDisk

    return CoreFilesOnDisk()


def source_text(roots: Sequence[str], mappings: Sequence[tuple[str, str]]) -> SourceText:
    """Return the finder of source lines below `roots`, with path prefixes rewritten by `mappings`."""
    from vdbg_env.engines.source_text import SourceFiles

    return SourceFiles(roots, mappings)


def lay_out_context(context: BuildContext, folder: Path) -> None:
    """Write a build context as files below a folder that does not exist yet."""
    from vdbg_env.engines.context_tar import extract

    extract(context, folder)
