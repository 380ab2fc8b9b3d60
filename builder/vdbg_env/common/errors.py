"""Every error this program raises on purpose, each with its exit status.

    VdbgError                 1  the tool could not do its work
    ├── BadInput              2  the user's file, flag or value is wrong
    │   └── BadDocument       2  ... at a line and column of a YAML file (`common.yaml_source`)
    ├── HostNotAble           1  this machine lacks what the command needs
    │   └── NotGuarded        1  ... to start a command under guard: it runs without
    ├── EngineFailed          1  a container engine or launcher failed
    ├── NotProven             3  built, but the proof of line info failed
    ├── OtherLines            4  built, but the lines are of other headers than the code was built with
    └── Interrupted         130  Ctrl-C or SIGTERM

A crash of the *workload under study* is never an error here: it is an observation (see `vdbg_env.evidence`).
"""

from __future__ import annotations

import errno
import shlex
from typing import Final

from gpucore.errors import ExplainedError, GpucoreError


class VdbgError(ExplainedError):
    """What happened, its usual cause, and the next thing to type.

    `cause` and `next_step` are shown on separate lines; `details` are further lines (a log tail, a list of places),
    printed before them as they are.
    """

    exit_status = 1


class BadInput(VdbgError):
    """The user's file, flag or value is wrong."""

    exit_status = 2


BAD_INPUT: Final = (BadInput, GpucoreError)
"""What is raised where the user's file or value is wrong: by this program, and by the readers of binaries."""

ANY_ERROR: Final = (VdbgError, GpucoreError)
"""Whatever this program and the readers of binaries raise on purpose."""


def quoted(word: object) -> str:
    """Return a word of a command to type: as it is where the shell leaves it alone, else in quotes.

    What `printable` would escape is written in a form that bash, zsh and ksh turn back into the same bytes. A name that
    starts with `-` is given from the current folder: to the command it would be a flag.
    """
    text = f"./{word}" if str(word).startswith("-") else str(word)
    if text.isprintable():
        return shlex.quote(text)
    plain = (c if c.isprintable() and c not in "\\'" else _octal(c) for c in text)
    return f"$'{''.join(plain)}'"


def _octal(character: str) -> str:
    kept = "\udc80" <= character <= "\udcff"
    data = character.encode("utf-8", "surrogateescape" if kept else "surrogatepass")
    return "".join(f"\\{byte:03o}" for byte in data)


def unreadable(path: object, error: OSError) -> BadInput:
    """Return the error for a file or folder that cannot be read."""
    causes = {
        errno.ENOENT: "a mistyped path, or one that starts from another folder",
        errno.EACCES: "it is another user's",
    }
    what = f"{path} cannot be read: {error.strerror or error}"
    return BadInput(what, cause=causes.get(error.errno or 0), next_step=f"ls -ld {quoted(path)}")


class HostNotAble(VdbgError):
    """This machine lacks what the command needs."""


class NotGuarded(HostNotAble):
    """A command that is to be guarded has not been started, and must be all the same."""


class EngineFailed(VdbgError):
    """A container engine, a toolchain or a launcher failed at its own work."""


class NotProven(VdbgError):
    """The build ended well, but line info could not be proven on what it built."""

    exit_status = 3


class OtherLines(VdbgError):
    """The code is proven, but lines are those of other headers than it was built with."""

    exit_status = 4


class Interrupted(VdbgError):
    """The user or the system asked the tool to stop; `signal` is the number of the signal."""

    def __init__(self, what: str, *, signal: int = 2, next_step: str | None = None) -> None:
        super().__init__(what, next_step=next_step)
        self.exit_status = 128 + signal
