"""One line out of all its wrappings."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vdbg_env.evidence import log_line
from vdbg_env.evidence.log_line import LogLine, plain, rank_of_file, unwrap

IMA = "CUDA error: an illegal memory access was encountered"


@pytest.mark.parametrize(
    ("raw", "process", "rank"),
    [
        (f"(EngineCore pid=154) ERROR 11-03 23:14:03 [core.py:710] {IMA}", "EngineCore", None),
        (f"(EngineCore_0 pid=7) ERROR 11-03 23:14:03 [core.py:710] {IMA}", "EngineCore_0", None),  # it counts engines
        (f"(EngineCore_DP1 pid=7) ERROR 11-03 23:14:03 [core.py:710] {IMA}", "EngineCore_DP1", None),  # so does this
        (f"vllm-0 server (Worker_TP3 pid=9) ERROR 11-03 23:14:03 [x.py:1] {IMA}", "Worker_TP3", 3),  # stern
        (f"[vllm-7c9f] (Worker_TP3 pid=9) ERROR 11-03 23:14:03 [x.py:1] {IMA}", "Worker_TP3", 3),  # kubetail
        (f"    (Worker_TP3 pid=9) ERROR 11-03 23:14:03 [x.py:1] {IMA}", "Worker_TP3", 3),  # pasted into a text
        (f"    [rank2]: {IMA}", None, 2),
        (f"(Worker_TP3 pid=9) ERROR 11-03 23:14:03 [multiproc_executor.py:710] {IMA}", "Worker_TP3", 3),
        (f"(Worker_DP0_TP2_EP2 pid=9) ERROR 11-03 23:14:03 [x.py:1] {IMA}", "Worker_DP0_TP2_EP2", 2),
        (f"(VllmWorker-1 pid=9) ERROR 11-03 23:14:03 [x.py:1] {IMA}", "VllmWorker-1", 1),
        (f"(Worker_PP1_TP0 pid=9) ERROR 11-03 23:14:03 [x.py:1] {IMA}", "Worker_PP1_TP0", None),
        (f"(VllmWorker rank=5 pid=9) ERROR 05-03 23:14:03 [multiproc_executor.py:470] {IMA}", "VllmWorker", 5),
        (
            f"(RayWorkerWrapper pid=33, ip=10.0.0.2) ERROR 05-03 23:14:03 worker_base.py:464] {IMA}",
            "RayWorkerWrapper",
            None,
        ),
        (f"[rank2]: {IMA}", None, 2),
        (f"3: {IMA}", None, 3),
        (f"[1,4]<stderr>:{IMA}", None, 4),
        (f"ERROR 06-10 21:32:17 async_llm_engine.py:52] {IMA}", None, None),
    ],
)
def test_every_generation_of_prefix_is_taken_off(raw: str, process: str | None, rank: int | None) -> None:
    line = unwrap(raw)
    assert (line.text, line.process, line.rank) == (IMA, process, rank)


@pytest.mark.parametrize(
    "wrapped",
    [
        json.dumps({"log": IMA + "\n", "stream": "stderr", "time": "2026-01-01T00:00:00Z"}),
        json.dumps({"MESSAGE": IMA, "_PID": "3"}),
        json.dumps({"MESSAGE": list(IMA.encode())}),
        f"2026-01-01T00:00:00.000000001Z stderr F {IMA}",
        f"Jan 01 00:00:00 node7 vllm[321]: {IMA}",
        f"[pod/vllm-0/server] 2026-01-01T00:00:00.1Z {IMA}",
        f"vllm-1  | {IMA}",
        f"\x1b[31m{IMA}\x1b[0m",
        f"Capturing: 5%\rCapturing: 9%\r{IMA}",
    ],
)
def test_every_container_format_is_opened(wrapped: str) -> None:
    assert unwrap(wrapped).text == IMA


@pytest.mark.parametrize(
    ("name", "rank"),
    [("run/rank2.log", 2), ("rank_2.txt", 2), ("job-7.Rank-013.out", 13), ("rank2/out.log", None), ("frank2.log", None),
     ("2.log", None), ("ranking2.log", None), ("rank1234567.log", None)],
)  # fmt: skip
def test_a_rank_is_read_from_the_name_of_a_log_after_the_word(name: str, rank: int | None) -> None:
    assert rank_of_file(name) == rank


def test_half_of_a_surrogate_pair_in_a_json_line_can_be_written() -> None:
    assert unwrap('{"log": "ValueError: \\ud800 is bad", "stream": "stderr"}').text == "ValueError: ? is bad"


def test_a_json_line_that_is_the_programs_own_is_left_alone() -> None:
    raw = '{"event": "CUDA error"}'
    assert unwrap(raw).text == raw


def test_level_and_stamp_are_kept() -> None:
    line = unwrap("2026-01-01T00:00:00Z stdout F (APIServer pid=1) INFO 11-21 07:00:00 [x.py:3] ready")
    assert (line.level, line.stamp, line.container) == ("INFO", "11-21 07:00:00", "2026-01-01T00:00:00Z")


@given(st.text())
def test_any_text_gives_a_line(raw: str) -> None:
    line = unwrap(raw)
    assert isinstance(line, LogLine)
    assert "\x1b" not in line.text


@given(st.text(alphabet=st.characters(exclude_categories=["C"])))
def test_plain_text_without_controls_is_kept(raw: str) -> None:
    assert plain(raw) == raw


@pytest.mark.parametrize(
    "label",
    [
        "",
        "(EngineCore pid=7) ",
        "(Worker_TP1 pid=7) ",
        "(VllmWorker rank=3 pid=7) ",
        "(A pid=1) (Worker pid=2) ",
        "(x) ",
    ],
)
@pytest.mark.parametrize("level", ["ERROR", "INFO", "INFO:", "TRACE"])
@pytest.mark.parametrize("place", ["[core.py:1]", "[core.py:1] [3/4]", "[core]"])
@pytest.mark.parametrize("stamp", ["11-03 23:14:03", "11-03 23:14:03.123", "23:14:03"])
def test_the_short_way_for_lines_of_vllm_says_what_the_long_one_does(
    label: str, level: str, place: str, stamp: str
) -> None:
    line = f"{label}{level} {stamp} {place} rank 5 died"
    assert unwrap(line) == log_line._unwrapped(line)
