"""A build is shown as it happens, and no more of it than was asked for."""

import io

import pytest
from rich.console import Console

from vdbg_env.build.builder import BuildEvent, BuildWarning, Built, OutputLine, StepEnded, StepStarted
from vdbg_env.cli.build import LiveDisplay, PlainDisplay, build_display

EVENTS: tuple[BuildEvent, ...] = (
    StepStarted(key="a", title="RUN apt-get update", number=1, total=2),
    OutputLine(key="a", text="Get:1 [red]x[/red]", stream="stdout"),
    StepEnded(key="a", cached=False, duration_s=3.21),
    StepStarted(key="b", title="COPY . /src", number=2, total=2),
    StepEnded(key="b", cached=True, duration_s=0.0),
    BuildWarning(text="memlock is limited"),
    StepStarted(key="c", title="RUN make"),
    StepEnded(key="c", cached=False, duration_s=1.0, error="exit status 2"),
    Built(image_id="sha256:1"),
)


@pytest.mark.parametrize(
    ("quiet", "verbose", "expected"),
    [
        (True, False, "warning: memlock is limited\n"),
        (
            False,
            False,
            "[1/2] RUN apt-get update\n3.2 s: [1/2] RUN apt-get update\n[2/2] COPY . /src\ncached: [2/2] COPY . /src\n"
            "warning: memlock is limited\nRUN make\nfailed: RUN make\n",
        ),
    ],
)
def test_plain_lines_without_a_terminal(quiet: bool, verbose: bool, expected: str) -> None:
    stream = io.StringIO()
    with build_display(quiet=quiet, verbose=verbose, stream=stream) as display:
        for event in EVENTS:
            display.tell(event)
    assert isinstance(display, PlainDisplay)
    assert stream.getvalue() == expected


def test_verbose_adds_every_line_of_output() -> None:
    stream = io.StringIO()
    with build_display(quiet=False, verbose=True, stream=stream) as display:
        for event in EVENTS:
            display.tell(event)
    assert "  | Get:1 [red]x[/red]\n" in stream.getvalue()


def test_the_live_display_keeps_running_steps_below_and_takes_no_markup_from_output() -> None:
    stream = io.StringIO()
    display = LiveDisplay(stream, clock=lambda: 7.0)
    for event in EVENTS[:2]:
        display.tell(event)
    out = io.StringIO()
    Console(file=out, width=80).print(display._table())
    assert "0 s" in out.getvalue()
    assert "Get:1 [red]x[/red]" in out.getvalue()
    display.tell(EVENTS[2])
    assert "3.2 s  [1/2] RUN apt-get update" in stream.getvalue()
    out = io.StringIO()
    Console(file=out, width=80).print(display._table())
    assert out.getvalue().strip() == ""
