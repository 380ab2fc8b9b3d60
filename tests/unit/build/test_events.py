from hypothesis import given
from hypothesis import strategies as st

from vdbg_env.build.builder import BuildWarning, OutputLine, StepEnded, StepStarted
from vdbg_env.build.progress import LineSplitter, LogChunk, Progress, ProgressReader, Vertex, clean_line


def vertex(
    name: str = "[base 2/3] RUN make -j8",
    *,
    started: float | None = 10.0,
    completed: float | None = None,
    error: str = "",
    cached: bool = False,
) -> Progress:
    found = Vertex(digest=f"sha256:{name}", name=name, started=started, completed=completed, error=error, cached=cached)
    return Progress(vertexes=(found,))


def log(data: bytes, name: str = "[base 2/3] RUN make -j8") -> Progress:
    return Progress(logs=(LogChunk(vertex=f"sha256:{name}", stream="stdout", data=data),))


def test_a_step_reported_many_times_is_told_once() -> None:
    reader = ProgressReader()
    reports = [vertex(started=None), vertex(), vertex(), vertex(completed=12.5), vertex(completed=12.5)]
    events = [event for report in reports for event in reader.events(report)]
    key = "sha256:[base 2/3] RUN make -j8"
    assert events == [
        StepStarted(key=key, title="RUN make -j8", number=2, total=3),
        StepEnded(key=key, cached=False, duration_s=2.5),
    ]


def test_a_cached_step_took_no_time() -> None:
    started, ended = ProgressReader().events(vertex(completed=10.4, cached=True))
    assert isinstance(started, StepStarted)
    assert ended == StepEnded(key=started.key, cached=True, duration_s=0.0)


def test_the_builders_own_errands_are_not_told_unless_they_fail() -> None:
    name = "[internal] load metadata for docker.io/library/none:latest"
    assert not list(ProgressReader().events(vertex(name, completed=11.0)))
    reader = ProgressReader()
    assert not list(reader.events(vertex(name)))
    started, ended = reader.events(vertex(name, completed=11.0, error="pull access denied"))
    assert isinstance(started, StepStarted) and started.title == name
    assert isinstance(ended, StepEnded) and ended.error == "pull access denied"
    failure = reader.failure("failed to solve")
    assert "neither on this engine" in failure.cause


def test_the_step_that_failed_is_named_not_the_ones_cancelled_with_it() -> None:
    reader = ProgressReader(jobs=4)
    reports = [
        vertex("[a 1/1] RUN other"),
        vertex(),
        vertex("[a 1/1] RUN other", completed=11.0, error="context canceled"),
        log(b"cc1plus\nKilled\n"),
        vertex(completed=12.0, error="executor failed running [/bin/sh -c make -j8]: exit code: 2"),
    ]
    for report in reports:
        list(reader.events(report))
    failure = reader.failure("exit code: 2")
    assert (failure.title, failure.code, failure.tail) == ("RUN make -j8", 2, ("cc1plus", "Killed"))
    assert failure.next_step == "the same command with --jobs 2"


def test_output_of_a_step_keeps_a_last_line_without_an_end() -> None:
    reader = ProgressReader()
    list(reader.events(vertex()))
    assert [e.text for e in reader.events(log(b"one\ntwo")) if isinstance(e, OutputLine)] == ["one"]
    last, _ = reader.events(vertex(completed=11.0))
    assert isinstance(last, OutputLine) and last.text == "two"


def test_a_build_that_lost_its_engine_names_the_step_at_work() -> None:
    reader = ProgressReader()
    list(reader.events(vertex()))
    failure = reader.lost("Connection reset by peer")
    assert failure.title == "RUN make -j8"
    assert "the engine went away" in failure.cause


def test_warnings_are_told() -> None:
    assert list(ProgressReader().events(Progress(warnings=("old syntax",)))) == [BuildWarning(text="old syntax")]


def test_of_a_progress_bar_the_last_state_is_shown_and_no_control_sequence_survives() -> None:
    assert clean_line(b"  10%\r  50%\r\x1b[32m100%\x1b[0m\r") == "100%"
    assert clean_line(b"\x1b]0;title\x07done") == "done"


@given(st.binary(max_size=400).map(lambda b: b.replace(b"\r", b"")), st.integers(1, 40))
def test_lines_do_not_depend_on_the_pieces_they_come_in(data: bytes, size: int) -> None:
    splitter = LineSplitter()
    found = [line for at in range(0, len(data), size) for line in splitter.feed(data[at : at + size])]
    found += splitter.rest()
    whole = LineSplitter()
    assert found == [*whole.feed(data), *whole.rest()]
    assert not any(c < " " and c != "\t" for line in found for c in line)
