"""Write answers, errors and short notes; in colour only on a terminal that shows it."""

from __future__ import annotations

import os
import sys
from typing import TextIO

from gpucore.errors import ExplainedError
from vdbg_env.common.errors import BadInput
from vdbg_env.common.printable import printable


def show_error(error: ExplainedError) -> None:
    """Print an error as what happened, its details, its usual cause and the next thing to type."""
    print(error_text(error, colour=shows_colour(sys.stderr)), file=sys.stderr)


def error_text(error: ExplainedError, *, colour: bool = False) -> str:
    """Return the text of an error as `show_error` prints it."""
    red, bold, plain = ("\x1b[31m", "\x1b[1m", "\x1b[0m") if colour else ("", "", "")
    lines = [f"{red}{bold}error:{plain} {printable(error.what)}"]
    lines += [f"  {printable(detail, keep=chr(9))}" for detail in error.details]
    if error.cause:
        lines.append(f"  usual cause: {printable(error.cause)}")
    if error.next_step:
        lines.append(f"  {bold}try:{plain} {printable(error.next_step)}")
    return "\n".join(lines)


def show(text: str) -> None:
    """Print an answer without colours, and whatever others put into it as text."""
    sys.stdout.write(printable(text, keep="\n"))


def note(*lines: str) -> None:
    """Print what is not part of the answer; a line break in a name begins no other line."""
    for line in lines:
        print(printable(line), file=sys.stderr)


def shows_colour(stream: TextIO) -> bool:
    """Say whether a stream is a terminal that shows colours, and the user did not switch them off (no-color.org)."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def one_line(value: str, what: str) -> str:
    """Return `value` when every character of it is printable.

    A control character (a line break above all) is the one thing no Dockerfile, shell or manifest can quote on a
    single line, so it is refused by name rather than escaped. Raises BadInput.
    """
    bad = next((c for c in value if not c.isprintable()), None)
    if bad is None:
        return value
    raise BadInput(
        f"{what} holds the control character {bad.encode('unicode_escape', 'surrogatepass').decode()}",
        cause="text pasted with a line break, or a file name with one",
        next_step="take the character out",
    )
