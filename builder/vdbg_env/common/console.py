"""What a person is shown: text from others made harmless, sizes and durations, notes, errors, how far a reading is."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Final, TextIO

from gpucore.errors import ExplainedError
from vdbg_env.common.errors import BadInput

_CELLS: Final = 24  # of a progress bar
_EVERY_S: Final = 0.1
_BEYOND_ASCII = re.compile(r"[^\n -~]+")


def printable(text: str, *, keep: str = "") -> str:
    """Escape what would move a cursor, forge a line or turn text around; characters in `keep` stay.

    A byte of a name that is not UTF-8 is shown as `\\xff`.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in keep else _escaped(c) for c in text)


def _escaped(character: str) -> str:
    if "\udc80" <= character <= "\udcff":  # how Python keeps such a byte (PEP 383)
        return f"\\x{ord(character) - 0xDC00:02x}"
    return character.encode("unicode_escape").decode()


_USER_OF_ADDRESS = re.compile(r"(?<=://)[^\s/?#@]{1,4096}(?=@)")


def without_passwords(text: str) -> str:
    """Return a text whose addresses have no user and no password (`https://TOKEN@HOST`): errors go into tickets."""
    return _USER_OF_ADDRESS.sub("***", text) if "://" in text else text


def printable_json(text: str) -> str:
    """Return a JSON document with such characters as its own escapes; `json.dumps` leaves those beyond ASCII."""

    def escaped(found: re.Match[str]) -> str:
        return "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in found[0])

    return _BEYOND_ASCII.sub(escaped, text)


def json_text(document: object) -> str:
    """Return values as indented JSON that ends with a newline; characters that a terminal acts on are escapes."""
    return printable_json(json.dumps(document, indent=2, ensure_ascii=False)) + "\n"


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
    return without_passwords("\n".join(lines))


def show(text: str) -> None:
    """Print an answer without colours, and whatever others put into it as text."""
    sys.stdout.write(printable(text, keep="\n"))


def note(*lines: str) -> None:
    """Print what is not part of the answer; a line break in a name begins no other line."""
    for line in lines:
        print(printable(without_passwords(line)), file=sys.stderr)


def shows_colour(stream: TextIO) -> bool:
    """Say whether a stream is a terminal that shows colours, and the user did not switch them off (no-color.org)."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def nearest(word: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """Return the known word most like `word`, or None when none is like it; the higher `cutoff`, the more alike."""
    options = list(known)
    lowered = {option.lower(): option for option in options}
    import difflib  # for a mistyped word alone

    close = difflib.get_close_matches(word.lower(), lowered, n=1, cutoff=cutoff)
    return lowered[close[0]] if close else None


def shortened(name: str, most: int = 300) -> str:
    """Return a name of any length for a terminal, without the middle of a long one: the JSON has the whole."""
    return name if len(name) <= most else f"{name[: most * 2 // 3]} … {name[-most // 3 :]}"


def counted(count: int, one: str, more: str | None = None) -> str:
    """Return a number with its noun: `1 file`, `1,204 files`; `more` is a plural that is not `one` with an s."""
    return f"{count:,} {one if count == 1 else more or one + 's'}"


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


def size_text(size: int) -> str:
    """Return a size in the largest binary unit that leaves a number of at least one: `512 B`, `3.1 MiB`."""
    value, unit = float(size), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < 1024 or unit == "TiB":
            break
        value /= 1024
    return f"{size} B" if unit == "B" else f"{value:.1f} {unit}"


def duration(seconds: float | None) -> str:
    """Return a duration in seconds as a person would say it: `0.4 s`, `42 s`, `7 min 58 s`, `3 h 02 min`."""
    if seconds is None:
        return "unknown time"
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02} min"


@contextmanager
def progress_bar(*, quiet: bool = False) -> Iterator[Callable[[str, float | None], None]]:
    """Show how far a long reading is on a terminal, and nothing elsewhere; clears its line at the end.

    Gives the function that is told the name of the file and the share of all that is done.
    """
    if quiet or not sys.stderr.isatty():
        yield lambda *_: None
        return
    bar = _Bar()
    try:
        yield bar.show
    finally:
        bar.clear()


class _Bar:
    """A line on the error stream that is written anew, at most ten times a second."""

    def __init__(self) -> None:
        self._shown_s = 0.0
        self._most = 0.0

    def show(self, name: str, done: float | None) -> None:
        """Write the line; what was done once stays done, although code is not read in the order of a file."""
        self._most = max(self._most, done or 0.0)
        now = time.monotonic()
        if now - self._shown_s < _EVERY_S:
            return
        self._shown_s = now
        filled = int(self._most * _CELLS)
        bar = f"[{'#' * filled}{'-' * (_CELLS - filled)}] {self._most:4.0%} " if done is not None else "reading "
        import shutil  # no command that is quick needs it

        room = shutil.get_terminal_size().columns - len(bar) - 1
        shown = printable(name)
        shown = shown if len(shown) <= room else f"...{shown[len(shown) - max(room - 3, 0) :]}"
        sys.stderr.write(f"\r{bar}{shown}\x1b[K")
        sys.stderr.flush()

    def clear(self) -> None:
        """Take the line away, if one was written."""
        if self._shown_s:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
