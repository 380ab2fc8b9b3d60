"""Makes the real engines; nothing else imports them, so every test may bring its own."""

from __future__ import annotations

from vdbg_env.application.ports import BinarySource, ProgramRunner


def binary_source() -> BinarySource:
    """Return the source of binaries: files, folders and wheels, then images."""
    from vdbg_env.engines.targets import Targets

    return Targets()


def programs() -> ProgramRunner:
    """Return the runner of this machine's helper programs."""
    from vdbg_env.engines.programs import Programs

    return Programs()
