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
