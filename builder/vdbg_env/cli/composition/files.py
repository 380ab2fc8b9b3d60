"""What is read from files, folders and images."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vdbg_env.engine.targets import Targets

if TYPE_CHECKING:
    from vdbg_env.crash.files import BinarySource


def binary_source(*, built: bool = False) -> BinarySource:
    return Targets(built=built)
