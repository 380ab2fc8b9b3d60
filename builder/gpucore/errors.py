"""The errors that this library raises on purpose; any other exception is a defect of it.

GpucoreError
├── UnreadableBinary  bytes do not follow their format
└── BadArgument       a text that the caller gave cannot be used
"""

from __future__ import annotations


class ExplainedError(Exception):
    """What happened, its usual cause, and what to do next: the form of this library's errors and of its users'.

    `what` is one sentence without a full stop. `cause` and `next_step` are None where neither is known. `details` are
    further lines, to be shown as they are.
    """

    def __init__(
        self, what: str, *, cause: str | None = None, next_step: str | None = None, details: tuple[str, ...] = ()
    ) -> None:
        super().__init__(what)
        self.what = what
        self.cause = cause
        self.next_step = next_step
        self.details = details


class GpucoreError(ExplainedError):
    """An error of this library."""


class UnreadableBinary(GpucoreError):
    """A binary file does not follow its format; `offset` is in bytes from the start of the bytes given, if known."""

    def __init__(
        self, what: str, *, offset: int | None = None, cause: str | None = None, next_step: str | None = None
    ) -> None:
        super().__init__(what if offset is None else f"{what} (at byte {offset:#x})", cause=cause, next_step=next_step)
        self.offset = offset


class BadArgument(GpucoreError):
    """A place, or the name of a folder, cannot be used."""
