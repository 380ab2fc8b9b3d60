"""Which of several ranks failed first: by the times that vLLM and PyTorch print, which have no year."""

import pytest

from tests.support.triage import triage_bytes
from vdbg_env.evidence.triage_verdict import Triage

HEALTHY = "(Worker_TP{0} pid={1}) INFO 11-24 10:09:{2:02d} [gpu_worker.py:271] Available KV cache memory: 52.44 GiB\n"
FAULT = """\
(Worker_TP{rank} pid={pid}) ERROR 11-24 {time} [multiproc_executor.py:613] WorkerProc hit an exception.
(Worker_TP{rank} pid={pid}) ERROR 11-24 {time} [multiproc_executor.py:613] Traceback (most recent call last):
(Worker_TP{rank} pid={pid}) ERROR 11-24 {time} [multiproc_executor.py:613] torch.AcceleratorError: CUDA error: an illegal memory access was encountered
"""  # noqa: E501
WATCHDOG = (
    "[rank{rank}]:[E1124 {time}.123461 ProcessGroupNCCL.cpp:1895] [PG ID 0 PG GUID 0 Rank {rank}] Process group "
    "watchdog thread terminated with exception: CUDA error: an illegal memory access was encountered\n"
)


def judged(logs: dict[str, bytes]) -> Triage:
    return triage_bytes(*logs.values(), names=tuple(logs))


def text(rank: int, time: str, form: str) -> bytes:
    healthy = "".join(HEALTHY.format(rank, 100 + rank, n) for n in range(20))
    return (healthy + form.format(rank=rank, pid=100 + rank, time=time)).encode()


@pytest.mark.parametrize("form", [FAULT, WATCHDOG, FAULT + WATCHDOG])
@pytest.mark.parametrize("first", [5, 11])
def test_the_rank_whose_line_has_the_earliest_time_is_named(first: int, form: str) -> None:
    logs = {f"rank{n}.log": text(n, "10:10:00" if n == first else "10:11:00", form) for n in (9, 11, 5, 10)}
    found = judged(logs)
    assert (found.failure.name, found.rank) == ("illegal-memory-access", first)
    assert not any("no times" in note for note in found.notes)


def test_forms_of_vllm_and_pytorch_compare() -> None:
    logs = {"a.log": text(11, "10:11:00", FAULT), "b.log": text(5, "10:10:00", WATCHDOG)}
    assert judged(logs).rank == 5


def test_where_no_times_compare_none_is_called_the_first() -> None:
    bare = "RuntimeError: CUDA error: an illegal memory access was encountered\n"
    found = judged({"rank11.log": text(11, "10:10:00", FAULT), "rank5.log": bare.encode()})
    assert "ranks 5, 11 show this failure, and their lines have no times that compare" in found.notes[0]


def test_the_one_log_without_a_word_is_named_where_all_others_wait_for_a_peer() -> None:
    waits = (
        "[rank{rank}]:[E1124 {time}.123461 ProcessGroupNCCL.cpp:632] [Rank {rank}] Watchdog caught collective "
        "operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran "
        "for 600032 ms\n"
    )
    logs = {f"rank{n}.log": text(n, "10:20:00", "" if n == 5 else waits) for n in range(16)}
    found = judged(logs)
    assert found.failure.name == "nccl-failure"
    assert found.notes[0] == "rank5.log shows no failure, and 15 other logs complain of a peer: look there first"


RAISED = """\
Traceback (most recent call last):
  File "/app/train.py", line 61, in main
    loss = step(batch)
{0}
"""
TORN = (
    "Traceback (most recent call last):\n"
    "torch.distributed.DistBackendError: NCCL error in: /pytorch/torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:3690,"
    " remote process exited or there was a network error, NCCL version 2.27.3\n"
    "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.\n"
)
WAITED = (
    "[rank{rank}]:[E1124 {time}.123461 ProcessGroupNCCL.cpp:632] [Rank {rank}] Watchdog caught collective operation "
    "timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600032 ms\n"
)


@pytest.mark.parametrize("complaint", [TORN, WAITED])
@pytest.mark.parametrize(
    "reason", ["KeyError: 'input_ids'", "FileNotFoundError: [Errno 2] No such file: '/data/a.tar'"]
)
def test_the_rank_that_died_of_its_own_exception_is_named_and_not_its_peers(complaint: str, reason: str) -> None:
    logs = {f"rank{n}.log": text(n, "10:20:00", RAISED.format(reason) if n == 9 else complaint) for n in range(16)}
    found = judged(logs)
    assert found.root_cause is not None
    assert (found.failure.name, found.rank, found.root_cause.text) == ("not-a-gpu-failure", 9, reason)
    assert found.confidence < 0.95
    assert [(a.failure, a.effect) for a in found.alternatives] == [("nccl-failure", True)]


def test_an_exception_that_a_rank_got_over_or_that_follows_a_complaint_is_not_the_cause() -> None:
    survived = text(9, "10:20:00", RAISED.format("KeyError: 'input_ids'")) + text(9, "10:20:00", "") * 3
    after = text(9, "10:20:00", TORN + RAISED.format("RuntimeError: training failed"))
    for own in (survived, after):
        logs = {f"rank{n}.log": own if n == 9 else text(n, "10:20:00", TORN) for n in range(16)}
        assert judged(logs).failure.name == "nccl-failure"


def test_an_exception_clearly_later_than_the_complaints_is_told_but_is_not_the_cause() -> None:
    late = "ERROR 11-24 10:45:00 [train.py:7] KeyError: 'input_ids'\n"
    logs = {f"rank{n}.log": text(n, "10:20:00", late if n == 9 else WAITED) for n in range(4)} | {
        "rank9.log": text(9, "10:45:00", late)
    }
    found = judged(logs)
    assert found.failure.name == "nccl-failure"
    assert any("rank9.log:21 is an exception that ended its process, but clearly later" in n for n in found.notes)
    assert ("not-a-gpu-failure", "rank9.log") in [(a.failure, a.file) for a in found.alternatives]


def test_the_network_s_own_trouble_does_not_give_way_to_an_exception() -> None:
    broken = "gpu-01:41:42 [0] misc/ibvwrap.cc:97 NCCL WARN Call to ibv_modify_qp failed with error No such device\n"
    logs = {f"rank{n}.log": text(n, "10:20:00", broken if n else RAISED.format("KeyError: 'x'")) for n in range(4)}
    assert judged(logs).failure.name == "nccl-failure"


def test_a_line_that_quotes_a_worker_gives_way_to_the_worker_s_own_whatever_the_clocks_say() -> None:
    quote = (
        "(EngineCore_DP0 pid=9) ERROR 11-24 {time} [core.py:710] RuntimeError: Worker failed with error "
        "'CUDA error: an illegal memory access was encountered\n"
    )
    found = judged({"rank0.log": text(0, "10:09:55", quote), "rank11.log": text(11, "10:10:00", FAULT)})
    assert (found.rank, found.root_cause and found.root_cause.file) == (11, "rank11.log")
    assert not any("only a line that passes the error on" in note for note in found.notes)
    assert judged({"rank0.log": text(0, "10:09:55", quote), "b.log": b"ok\n"}).failure.name == "illegal-memory-access"


def test_other_ranks_with_the_same_fault_are_mentioned() -> None:
    found = judged({f"rank{n}.log": text(n, f"10:10:{n:02d}", FAULT) for n in (11, 3)})
    assert found.rank == 3
    assert found.notes[0].startswith("ranks 3, 11 each show this failure; by its time rank 3's is the first, but")
    assert found.confidence < 0.95


def test_what_came_long_before_its_cause_is_not_called_an_effect() -> None:
    crash = "ERROR 11-24 {time} [x.py:1] Fatal Python error: Segmentation fault\n"
    for time, effect in (("10:09:40", False), ("10:09:58", True)):
        found = judged({"rank4.log": text(4, time, crash), "rank3.log": text(3, "10:10:00", FAULT)})
        assert (found.failure.name, found.rank) == ("illegal-memory-access", 3)
        assert [(a.failure, a.effect) for a in found.alternatives] == [("host-crash", effect)]
        assert any("20 s earlier by its time" in note for note in found.notes) is not effect


@pytest.mark.parametrize(("last", "effect"), [("10:09:40", False), ("10:09:58", True), ("10:10:30", True)])
def test_a_death_without_a_time_may_be_no_effect_where_its_process_was_last_heard_of_before(
    last: str, effect: bool
) -> None:
    crash = f"(Worker_TP4 pid=104) INFO 11-24 {last} [x.py:1] step 9\nFatal Python error: Segmentation fault\n"
    found = judged({"rank4.log": text(4, "", crash), "rank3.log": text(3, "10:10:00", FAULT)})
    assert (found.failure.name, found.rank) == ("illegal-memory-access", 3)
    assert [(a.failure, a.effect) for a in found.alternatives] == [("host-crash", effect)]
    told = "rank4.log:22 (host-crash) has no time, and the line before it that has one is 20 s earlier"
    assert any(note.startswith(told) for note in found.notes) is not effect


def test_a_line_without_a_time_is_not_called_the_first_for_the_time_of_a_line_before_it() -> None:
    bare = "RuntimeError: CUDA error: an illegal memory access was encountered\n"
    idle = text(5, "", "") + bare.encode()
    for other in (text(11, "10:10:00", FAULT), text(11, "", "") + bare.encode()):
        found = judged({"rank11.log": other, "rank5.log": idle})
        assert "ranks 5, 11 show this failure, and their lines have no times that compare" in found.notes[0]


def test_the_time_of_another_process_is_not_that_of_a_line_with_a_label() -> None:
    fault = "(Worker_TP4 pid=104) Fatal Python error: Segmentation fault\n"
    crash = text(4, "", "") + text(9, "", "") + fault.encode()
    found = judged({"rank4.log": crash, "rank3.log": text(3, "10:10:00", FAULT)})
    assert any("is 41 s earlier than the line above" in note for note in found.notes)


@pytest.mark.parametrize(
    ("one", "other", "first"),
    [
        ("2026-11-26T09:03:12.9-05:00", "2026-11-26T14:03:05.9Z", 11),
        ("2026-11-26T23:03:12.9+0900", "2026-11-26T14:03:05.9Z", 11),
        ("2026-11-26T23:03:01.9+09:00", "2026-11-26T14:03:05.9Z", 3),
    ],
)
def test_times_with_an_offset_are_compared_in_utc(one: str, other: str, first: int) -> None:
    line = "{} stderr F RuntimeError: CUDA error: an illegal memory access was encountered\n"
    found = judged({"rank3.log": line.format(one).encode(), "rank11.log": line.format(other).encode()})
    assert found.rank == first


@pytest.mark.parametrize("stamp", ["2026-13-45T25:61:61Z", "2026-11-26T09:03:12.9-99:00", "0001-01-01T00:00:00+14:00"])
def test_a_time_that_cannot_be_is_no_reason_to_fail(stamp: str) -> None:
    line = f"{stamp} stderr F RuntimeError: CUDA error: an illegal memory access was encountered\n".encode()
    assert judged({"rank3.log": line, "rank11.log": line}).failure.name == "illegal-memory-access"


def test_the_rank_that_all_lines_of_a_file_say_is_truer_than_its_name() -> None:
    fault = "RuntimeError: CUDA error: an illegal memory access was encountered\n" + WATCHDOG
    own = fault.format(rank=11, pid=9, time="10:10:00").encode()
    assert judged({"node1/rank3.log": own, "node0/rank3.log": b"ok\n"}).rank == 11
    other = b"[rank4]: RuntimeError: CUDA error: an illegal memory access was encountered\n"
    several = fault.partition("\n")[0].encode() + b"\n" + own[own.index(b"[rank") :] + other
    assert judged({"node1/rank3.log": several}).rank == 3


def test_the_rank_of_a_worker_that_died_is_its_own_not_that_of_the_engine_that_misses_it() -> None:
    line = "(EngineCore_DP0 pid=241) ERROR 11-27 03:11:20 [multiproc_executor.py:230] "
    verdict = triage_bytes(
        f"{line}Worker proc VllmWorker-3 died unexpectedly (exit code: -9), shutting down.\n".encode()
    )
    assert (verdict.process, verdict.rank) == ("VllmWorker-3", 3)
