"""Stacks of a silent process tree: where each process waits."""

from dataclasses import replace

import pytest

from vdbg_env.evidence.python_text import (
    HostStacks,
    Stuck,
    missing_ranks,
    parse_host_stacks,
    stopped_and_running,
    stuck_finding,
    stuck_process,
)

SERVER = """\
Process 154: VLLM::EngineCore
Python v3.12.3 (/usr/bin/python3.12)

Thread 154 (idle): "MainThread"
    poll (zmq/sugar/poll.py:106)
    recv_multipart (zmq/sugar/socket.py:751)
    wait (threading.py:359)
    acquire_read (vllm/distributed/device_communicators/shm_broadcast.py:610)
    dequeue (vllm/distributed/device_communicators/shm_broadcast.py:702)
    run_busy_loop (vllm/v1/engine/core.py:1012)
Thread 0x7F2C (active): "Thread-1"
    cudaEventSynchronize (libcudart.so.13)
    synchronize (torch/cuda/streams.py:231)
    execute_model (vllm/v1/worker/gpu_model_runner.py:3021)
"""


def test_the_waiting_place_is_vllm_and_not_the_library_it_waits_in() -> None:
    (place,) = parse_host_stacks(SERVER.splitlines()).waiting_in
    assert "shm_broadcast.py:610" in place


def test_a_native_frame_gives_way_to_the_python_frame_that_called_it() -> None:
    thread = parse_host_stacks(SERVER.splitlines()).threads[1]
    assert thread.own_frame is not None
    assert (thread.active, thread.own_frame.file, thread.own_frame.line) == (True, "torch/cuda/streams.py", 231)


def test_a_thread_that_only_waits_still_has_a_place() -> None:
    text = 'Process 7: python\nThread 7 (idle): "MainThread"\n    select (selectors.py:468)\n'
    assert parse_host_stacks(text.splitlines()).waiting_in == ("python (7): selectors.py:468 in select",)


# From a vLLM 0.32 on two nodes (CPU backend, gloo), by py-spy 0.4: rank 1 spins, rank 0 waits for it.
WAITS = """\
process 1453 VLLM::Worker_TP (parent 1, state S)
Process 1453: VLLM::Worker_TP0
Python v3.11.7 (/usr/bin/python3.11)

Thread 1453 (idle): "MainThread"
    all_reduce (torch/distributed/distributed_c10d.py:3252)
    _exception_logger.<locals>.wrapper (torch/distributed/c10d_logger.py:83)
    CpuCommunicator.all_reduce (vllm/distributed/device_communicators/cpu_communicator.py:85)
    tensor_model_parallel_all_reduce (vllm/distributed/communication_op.py:14)
    VocabParallelEmbedding.forward (vllm/model_executor/layers/vocab_parallel_embedding.py:562)
Process 30495: VLLM::EngineCore
Thread 30495 (idle): "MainThread"
    Poller.poll (zmq/sugar/poll.py:106)
    MessageQueue.dequeue (vllm/distributed/device_communicators/shm_broadcast.py:971)
"""
SPINS = """\
process 30497 VLLM::Worker_TP (parent 1, state R)
Process 30497: VLLM::Worker_TP1
Thread 30497 (active+gil): "MainThread"
    _spin (vllm_faults.py:158)
    Worker.execute_model (vllm/v1/worker/gpu_worker.py:1328)
Thread 6125 (idle): "tqdm_monitor"
    Condition.wait (threading.py:331)
"""


def of(*texts: str) -> dict[int, HostStacks]:
    return {rank: parse_host_stacks(text.splitlines()) for rank, text in enumerate(texts)}


def test_the_rank_that_is_missing_from_the_collective_is_named_with_its_place() -> None:
    (found,) = missing_ranks(of(WAITS, SPINS, WAITS))
    assert found.message == (
        "2 of 3 ranks wait in all_reduce; rank 1 never arrived: it is at vllm_faults.py:158 in _spin (VLLM::Worker_TP1)"
    )


@pytest.mark.parametrize(
    "ranks", [(WAITS, WAITS), (SPINS, SPINS), (WAITS, "process 7 python (parent 1, state S)\n"), (WAITS,)]
)
def test_no_rank_is_missing_where_all_are_there_or_none_can_be_read(ranks: tuple[str, ...]) -> None:
    assert missing_ranks(of(*ranks)) == ()


def test_processes_that_were_stopped_or_ran_are_told_from_those_that_waited() -> None:
    """As the supervisor writes hang.txt: the state of a process is that of its first thread alone."""
    text = """\
# hang: no output for 3 s
process 10 sh (parent 9, state S)
  thread 10 sh: state S, waits in do_wait
process 11 python3 (parent 10, state S)
  thread 11 python3: state S, waits in futex_wait_queue_me
  thread 12 python3: state R, waits in -
process 13 python3 (parent 10, state T)
  thread 13 python3: state T, waits in do_signal_stop

# py-spy: process 11
process 14 python3 (parent 10, state R)
"""
    assert stopped_and_running(text.splitlines()) == (("python3 (13)",), ("python3 (11)",))
    assert stopped_and_running([]) == ((), ())


STOPPED = "process 30497 VLLM::Worker_TP1 (parent 1, state T, 0.0 s of processor time in 60.0 s)\n"
ENGINE = """\
process 30495 VLLM::EngineCore (parent 1, state R, 59.0 s of processor time in 60.0 s)
Process 30495: VLLM::EngineCore
Thread 30495 (active): "MainThread"
    MessageQueue.acquire_read (vllm/distributed/device_communicators/shm_broadcast.py:860)
    MessageQueue.dequeue (vllm/distributed/device_communicators/shm_broadcast.py:971)
"""


def stuck(text: str) -> Stuck | None:
    return stuck_process(parse_host_stacks(text.splitlines()))


def test_a_stopped_process_is_before_all_that_wait_for_it() -> None:
    found = stuck(ENGINE + STOPPED)
    assert found is not None and (found.how, found.rank) == ("stopped", 1)
    assert str(found) == "Worker_TP1 (rank 1) is stopped (state T): by SIGSTOP, a debugger or a terminal"


def test_the_process_that_runs_is_named_and_not_the_one_that_polls_for_its_answer() -> None:
    spins = SPINS.replace("state R", "state R, 58.2 s of processor time in 60.0 s")
    found = stuck(ENGINE + WAITS + spins)
    assert found is not None and str(found.place) == "vllm_faults.py:158 in _spin"
    assert str(found) == "Worker_TP1 (rank 1) runs and makes no progress: 58 s of processor time in 60 s"
    assert stuck_finding(found).location == found.place
    assert "at that line" in str(stuck_finding(found).next_step)
    assert "py-spy" in str(stuck_finding(replace(found, place=None)).next_step), "there is no line to look at"


def test_a_process_that_waits_for_a_lock_is_named_where_it_used_no_processor() -> None:
    waits = SPINS.replace("state R", "state S, 0.1 s of processor time in 60.0 s")
    waits = waits.replace("active+gil", "idle").replace("_spin", "_wait")
    found = stuck(ENGINE + waits)
    assert found is not None and (found.how, str(found.place)) == ("waits", "vllm_faults.py:158 in _wait")


def test_where_each_waits_for_another_none_is_named() -> None:
    assert stuck(ENGINE + WAITS) is None
    assert stuck(SERVER) is None
