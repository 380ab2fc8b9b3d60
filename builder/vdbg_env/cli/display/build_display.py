"""Show a build as it happens: live steps on a terminal, plain lines elsewhere; both on the error stream."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TextIO

from vdbg_env.build.builder import BuildEvent, BuildFailed, BuildWarning, Built, OutputLine, StepEnded, StepStarted
from vdbg_env.common.printable import printable

if TYPE_CHECKING:
    from rich.live import Live
    from rich.table import Table


def build_display(*, quiet: bool, verbose: bool, stream: TextIO | None = None) -> PlainDisplay | LiveDisplay:
    """Return the display that fits: none when quiet, live on a terminal, plain lines elsewhere or when verbose."""
    target = stream or sys.stderr
    if quiet:
        return PlainDisplay(target, level="warnings")
    if verbose or not target.isatty():
        return PlainDisplay(target, level="output" if verbose else "steps")
    return LiveDisplay(target)


class PlainDisplay:
    """One line an event; `level` says how much: warnings only, steps, or every line of output too."""

    def __init__(self, stream: TextIO, *, level: str) -> None:
        self._stream = stream
        self._level = level
        self._titles: dict[str, str] = {}

    def __enter__(self) -> PlainDisplay:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def tell(self, event: BuildEvent) -> None:
        match event:
            case StepStarted():
                self._titles[event.key] = _title(event)
                self._line(self._titles[event.key], "steps")
            case StepEnded():
                self._line(f"{_outcome(event)}: {self._titles.get(event.key, event.key)}", "steps")
            case OutputLine():
                self._line(f"  | {event.text}", "output")
            case BuildWarning():
                self._line(f"warning: {event.text}", "warnings")
            case Built() | BuildFailed():  # the command itself reports these, with what to do next
                pass

    def _line(self, text: str, level: str) -> None:
        levels = ("warnings", "steps", "output")
        if levels.index(level) <= levels.index(self._level):
            print(printable(text, keep="\t"), file=self._stream, flush=True)


class LiveDisplay:
    """Finished steps scroll away above; the running ones stay below with their elapsed time and last line."""

    def __init__(self, stream: TextIO, *, clock: Callable[[], float] = time.monotonic) -> None:
        from rich.console import Console

        self._console = Console(file=stream)
        self._clock = clock
        self._running: dict[str, tuple[str, float]] = {}
        self._last_line: dict[str, str] = {}
        self._live: Live | None = None

    def __enter__(self) -> LiveDisplay:
        from rich.live import Live

        self._live = Live(console=self._console, get_renderable=self._table, refresh_per_second=8, transient=True)
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._live.stop()

    def tell(self, event: BuildEvent) -> None:
        match event:
            case StepStarted():
                self._running[event.key] = (_title(event), self._clock())
            case StepEnded():
                title, _ = self._running.pop(event.key, (event.key, 0.0))
                self._last_line.pop(event.key, None)
                style = "red" if event.error else "dim" if event.cached else "green"
                text = printable(f"{_outcome(event):>9}  {title}")
                self._console.print(text, style=style, markup=False, highlight=False)
            case OutputLine():
                self._last_line[event.key] = event.text
            case BuildWarning():
                text = printable(f"  warning  {event.text}")
                self._console.print(text, style="yellow", markup=False, highlight=False)
            case Built() | BuildFailed():  # the command itself reports these, with what to do next
                pass

    def _table(self) -> Table:
        from rich.table import Table
        from rich.text import Text

        table = Table.grid(padding=(0, 2))
        table.add_column(justify="right", style="cyan", min_width=9)
        table.add_column(no_wrap=True, overflow="ellipsis")
        for key, (title, since) in self._running.items():
            table.add_row(f"{self._clock() - since:.0f} s", Text(printable(title)))
            if key in self._last_line:
                table.add_row("", Text(printable(self._last_line[key]), style="dim"))
        return table


def _title(event: StepStarted) -> str:
    place = f"[{event.number}/{event.total}] " if event.number and event.total else ""
    return place + event.title


def _outcome(event: StepEnded) -> str:
    if event.error:
        return "failed"
    return "cached" if event.cached else f"{event.duration_s:.1f} s"
