"""Stacks of a silent process tree: where each process waits."""

import pytest

from vdbg_env.evidence.logs.host_stacks import HostStacks, missing_ranks, parse_host_stacks

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
        "2 of 3 ranks wait in all_reduce, and it is missing: rank 1 is at vllm_faults.py:158 in _spin (VLLM::Worker_TP)"
    )


@pytest.mark.parametrize(
    "ranks", [(WAITS, WAITS), (SPINS, SPINS), (WAITS, "process 7 python (parent 1, state S)\n"), (WAITS,)]
)
def test_no_rank_is_missing_where_all_are_there_or_none_can_be_read(ranks: tuple[str, ...]) -> None:
    assert missing_ranks(of(*ranks)) == ()
