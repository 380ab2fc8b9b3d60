"""Write errors and short notes to the error stream, in colour only on a terminal that shows it."""

from __future__ import annotations

import os
import sys
from typing import TextIO

from vdbg_env.common.errors import VdbgError


def show_error(error: VdbgError) -> None:
    """Print an error as what happened, its details, its usual cause and the next thing to type."""
    print(error_text(error, colour=shows_colour(sys.stderr)), file=sys.stderr)


def error_text(error: VdbgError, *, colour: bool = False) -> str:
    """Return the text of an error as `show_error` prints it."""
    red, bold, plain = ("\x1b[31m", "\x1b[1m", "\x1b[0m") if colour else ("", "", "")
    lines = [f"{red}{bold}error:{plain} {_one_line(error.what)}"]
    lines += [f"  {detail}" for detail in error.details]
    if error.cause:
        lines.append(f"  usual cause: {_one_line(error.cause)}")
    if error.next_step:
        lines.append(f"  {bold}try:{plain} {_one_line(error.next_step)}")
    return "\n".join(lines)


def note(text: str) -> None:
    """Print one line that is not part of the answer."""
    print(text, file=sys.stderr)


def _one_line(text: str) -> str:
    """Keep control characters in input from moving the cursor or forging a second line."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def shows_colour(stream: TextIO) -> bool:
    """Say whether a stream is a terminal that shows colours, and the user did not switch them off (no-color.org)."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
