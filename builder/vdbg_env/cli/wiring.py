"""Makes the real engines; nothing else imports them, so every test may bring its own."""

from __future__ import annotations

from pathlib import Path

from vdbg_env.application.ports import BinarySource, ProgramRunner
from vdbg_env.image.context import BuildContext


def binary_source() -> BinarySource:
    """Return the source of binaries: files, folders and wheels, then images."""
    from vdbg_env.engines.targets import Targets

    return Targets()


def programs() -> ProgramRunner:
    """Return the runner of this machine's helper programs."""
    from vdbg_env.engines.programs import Programs

    return Programs()


def lay_out_context(context: BuildContext, folder: Path) -> None:
    """Write a build context as files below a folder that does not exist yet."""
    from vdbg_env.engines.context_tar import extract

    extract(context, folder)
