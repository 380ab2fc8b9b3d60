"""The log loses a torn last line and nothing else, and its durations do not care for the wall clock."""

import errno
import itertools
import json
import os
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from vdbg_env.common.errors import BadInput, HostNotAble
from vdbg_env.record.event_log import EventLog, read_events, summarize
from vdbg_env.record.redactor import Redactor


def log_at(path: Path, monotonic: float = 0.0, wall: float = 0.0) -> EventLog:
    ticks = itertools.count(monotonic)
    return EventLog(path, Redactor(), lambda: next(ticks), lambda: wall)


def test_what_was_appended_is_read_back_in_order(tmp_path: Path) -> None:
    log = log_at(tmp_path / "events.jsonl")
    for number in range(3):
        log.append("step", number=number)
    log.close()
    events = read_events(tmp_path / "events.jsonl")
    assert [(e.seq, e.kind, e.data["number"]) for e in events] == [(1, "step", 0), (2, "step", 1), (3, "step", 2)]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(cut=st.integers(0, 400))
def test_a_log_torn_anywhere_keeps_its_whole_events_and_can_be_continued(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "events.jsonl"
    path.unlink(missing_ok=True)
    log = log_at(path)
    for number in range(5):
        log.append("step", number=number)
    log.close()
    data = path.read_bytes()[: cut or 1]
    path.write_bytes(data)
    assert len(list(read_events(path))) == data.count(b"\n")
    log = log_at(path)
    log.append("more")
    log.close()
    events = list(read_events(path))
    assert [e.seq for e in events] == list(range(1, len(events) + 1))
    assert events[-1].kind == "more"


def test_a_log_is_resumed_in_memory_that_does_not_grow_with_it(tmp_path: Path) -> None:
    peaks = []
    for count in (2_000, 40_000):
        line = '{"seq": %d, "at": "t", "elapsed_s": 1.5, "kind": "attempt_started", "padding": "0123456789"}\n'
        (tmp_path / "events.jsonl").write_text("".join(line % seq for seq in range(1, count + 1)))
        log = log_at(tmp_path / "events.jsonl")
        tracemalloc.start()
        seen = sum(1 for _ in log.recorded())
        assert (seen, log.append("more").seq) == (count, count + 1)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        log.close()
    assert peaks[1] < peaks[0] + (64 << 10)


def test_a_log_is_summarized_as_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    assert summarize(path).last is None
    log = log_at(path)
    for kind in ("run_started", "step_finished", "step_finished", "run_finished"):
        log.append(kind, text='{"seq": 9, "at": "t", "elapsed_s": 1, "kind": "step_finished"}\n')
    log.close()
    whole = path.read_bytes()
    events = list(read_events(path))
    assert (summarize(path).steps, summarize(path).last) == (2, events[-1])
    path.write_bytes(whole[:-5])
    assert (summarize(path).steps, summarize(path).last) == (2, events[-2])
    path.write_bytes(whole.replace(b'"seq": 2', b'"seq": 7'))
    with pytest.raises(BadInput, match="event 7 is where event 2 should be"):
        summarize(path)
    path.write_bytes(whole.replace(b'{"seq": 2', b'"seq": 2'))
    with pytest.raises(BadInput, match="line 2 is damaged"):
        summarize(path)


def test_damage_that_is_no_torn_end_is_told(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    log = log_at(path)
    log.append("a")
    log.append("b")
    log.close()
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"garbage\n" + lines[1])
    with pytest.raises(BadInput, match="line 1 is damaged"):
        list(read_events(path))
    path.write_bytes(lines[1])
    with pytest.raises(BadInput, match="event 2 is where event 1 should be"):
        list(read_events(path))


@pytest.mark.parametrize("jump", [-86400.0, 86400.0])
def test_a_wall_clock_that_jumps_a_day_changes_no_duration_and_no_order(tmp_path: Path, jump: float) -> None:
    wall = iter([1e9, 1e9 + jump, 1e9])
    ticks = iter([0.0, 1.0, 2.0, 3.0])
    log = EventLog(tmp_path / "events.jsonl", Redactor(), lambda: next(ticks), lambda: next(wall))
    assert [log.append("e").elapsed_s for _ in range(3)] == [1.0, 2.0, 3.0]
    log.close()
    assert [e.seq for e in read_events(tmp_path / "events.jsonl")] == [1, 2, 3]


def test_time_goes_on_from_where_a_dead_engine_stopped(tmp_path: Path) -> None:
    log = log_at(tmp_path / "events.jsonl", monotonic=100.0)
    assert log.append("a").elapsed_s == 1.0
    log.close()
    log = log_at(tmp_path / "events.jsonl", monotonic=5.0)
    assert log.append("b").elapsed_s == 2.0
    log.close()


def test_secrets_are_taken_out_of_events(tmp_path: Path) -> None:
    log = log_at(tmp_path / "events.jsonl")
    log.append("e", argv=["--x=hf_abcdefghijklmnopqrstuvwx"], env={"MY_TOKEN": "short"})
    log.close()
    text = (tmp_path / "events.jsonl").read_text()
    assert "hf_abc" not in text
    assert "short" not in text


def test_on_a_full_disk_the_reserve_is_given_up_and_the_event_fits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = log_at(tmp_path / "events.jsonl")
    real, reserve = os.write, tmp_path / "events.reserve"

    def full(descriptor: int, data: bytes) -> int:
        if reserve.exists():
            real(descriptor, bytes(data)[:5])
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(descriptor, data)

    monkeypatch.setattr("vdbg_env.common.files.os.write", full)
    log.append("last", word="x")
    assert json.loads((tmp_path / "events.jsonl").read_text())["word"] == "x"

    def fuller(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("vdbg_env.common.files.os.write", fuller)
    with pytest.raises(HostNotAble, match="cannot be written: No space left"):
        log.append("lost")
    assert len(list(read_events(tmp_path / "events.jsonl"))) == 1


def test_an_engine_that_was_killed_worked_no_longer_than_the_clock_went_on(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    log_at(path).append("attempt_started")
    for claimed, counted in ((50.0, 50.0), (1e300, 60.0), (float("nan"), 0.0)):
        log = log_at(path, wall=60.0)
        list(log.recorded())
        before = log.last_s
        log.count_work(claimed)
        assert log.elapsed_s() == pytest.approx(before + counted, abs=5)
